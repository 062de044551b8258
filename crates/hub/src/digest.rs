//! What the hub says a file's bytes hash to.
//!
//! Files in large file storage carry the SHA-256 of their bytes; all others the name of their git blob, the SHA-1 of
//! `blob <size>\0` and the bytes.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use ring::digest;

/// Bytes read at a time.
pub(crate) const CHUNK: usize = 1 << 18;

/// A hash, in lower-case hexadecimal digits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Digest {
    /// Of the file's bytes.
    Sha256(String),
    /// Of the file as a git blob.
    GitSha1(String),
}

impl Digest {
    /// The SHA-256 written in `hex`, if it is one.
    pub(crate) fn sha256(hex: &str) -> Option<Self> {
        is_hex(hex, 64).then(|| Self::Sha256(hex.to_owned()))
    }

    /// The git blob name written in `hex`, if it is one.
    pub(crate) fn git_sha1(hex: &str) -> Option<Self> {
        is_hex(hex, 40).then(|| Self::GitSha1(hex.to_owned()))
    }

    /// The digits, which are also the file's name among the cache's blobs.
    pub fn hex(&self) -> &str {
        match self {
            Self::Sha256(hex) | Self::GitSha1(hex) => hex,
        }
    }

    /// What is hashed how.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Sha256(_) => "sha256",
            Self::GitSha1(_) => "git sha1",
        }
    }

    /// Begins hashing a file of `size` bytes.
    pub(crate) fn hasher(&self, size: u64) -> Hasher {
        match self {
            Self::Sha256(_) => Hasher(digest::Context::new(&digest::SHA256)),
            Self::GitSha1(_) => {
                let mut context = digest::Context::new(&digest::SHA1_FOR_LEGACY_USE_ONLY);
                context.update(format!("blob {size}\0").as_bytes());
                Hasher(context)
            }
        }
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.name(), self.hex())
    }
}

/// A hash under way.
#[derive(Clone)]
pub(crate) struct Hasher(digest::Context);

impl Hasher {
    pub(crate) fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// Hashes the first `bytes` bytes that a reader gives.
    pub(crate) fn read(&mut self, reader: &mut impl Read, bytes: u64) -> io::Result<()> {
        let mut left = bytes;
        let mut chunk = vec![0; CHUNK];
        while left > 0 {
            let want = chunk.len().min(usize::try_from(left).unwrap_or(usize::MAX));
            reader.read_exact(&mut chunk[..want])?;
            self.update(&chunk[..want]);
            left -= want as u64;
        }
        Ok(())
    }

    /// The digits.
    pub(crate) fn finish(self) -> String {
        self.0.finish().as_ref().iter().fold(String::new(), |hex, byte| hex + &format!("{byte:02x}"))
    }
}

/// True if a file is there with this size and, where one is known, this hash.
pub(crate) fn is_complete(path: &Path, size: Option<u64>, digest: Option<&Digest>) -> io::Result<bool> {
    let mut file = match File::open(path) {
        Ok(file) => file,
        Err(cause) if matches!(cause.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            return Ok(false);
        }
        Err(cause) => return Err(cause),
    };
    let metadata = file.metadata()?;
    if !metadata.is_file() || size.is_none_or(|size| size != metadata.len()) {
        return Ok(false);
    }
    let Some(digest) = digest else { return Ok(true) };
    let mut hasher = digest.hasher(metadata.len());
    hasher.read(&mut file, metadata.len())?;
    Ok(hasher.finish() == digest.hex())
}

fn is_hex(text: &str, len: usize) -> bool {
    text.len() == len && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

#[cfg(test)]
mod tests {
    use super::*;

    const EMPTY_SHA256: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
    const HELLO_BLOB: &str = "ce013625030ba8dba906f756967f9e9ca394464a";

    #[test]
    fn known_hashes() {
        let empty = Digest::sha256(EMPTY_SHA256).unwrap();
        assert_eq!(empty.hasher(0).finish(), EMPTY_SHA256);
        // What `git hash-object` says of "hello\n".
        let blob = Digest::git_sha1(HELLO_BLOB).unwrap();
        let mut hasher = blob.hasher(6);
        hasher.read(&mut &b"hello\nand more"[..], 6).unwrap();
        assert_eq!(hasher.finish(), HELLO_BLOB);
        assert!(blob.hasher(6).read(&mut &b"hello"[..], 6).is_err());
    }

    #[test]
    fn only_hashes_are_hashes() {
        assert!(Digest::sha256("../../etc/passwd").is_none());
        assert!(Digest::sha256(HELLO_BLOB).is_none());
        assert!(Digest::git_sha1(&HELLO_BLOB.to_uppercase()).is_none());
    }

    #[test]
    fn completeness_is_size_and_hash() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("hello");
        let blob = Digest::git_sha1(HELLO_BLOB).unwrap();
        assert!(!is_complete(&path, Some(6), Some(&blob)).unwrap());
        std::fs::write(&path, "hello\n").unwrap();
        assert!(is_complete(&path, Some(6), Some(&blob)).unwrap());
        assert!(is_complete(&path, Some(6), None).unwrap());
        assert!(!is_complete(&path, Some(5), None).unwrap());
        assert!(!is_complete(&path, None, None).unwrap());
        std::fs::write(&path, "hallo\n").unwrap();
        assert!(!is_complete(&path, Some(6), Some(&blob)).unwrap());
        assert!(!is_complete(folder.path(), Some(6), None).unwrap());
    }
}
