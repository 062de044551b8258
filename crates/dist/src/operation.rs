//! What a rank says about an operation before any data moves.
//!
//! The header of an operation, at most [`MAX_HEADER_BYTES`] (little-endian):
//! ```text
//! sequence u64 | num_bytes u64 | root u32 | line u32 | kind u8 | dtype u8 | file, UTF-8: the end of it if it is long
//! ```
//! All ranks of a group exchange headers and compare them with the header of the first rank.

use std::fmt;
use std::panic::Location;

use tensor::DType;

/// The longest header; short enough for an engine to send it in one go.
pub(crate) const MAX_HEADER_BYTES: usize = 120;
const FIXED_BYTES: usize = 26;
const NO_ROOT: u32 = u32::MAX;
const DTYPES: [DType; 4] = [DType::F32, DType::Bf16, DType::I32, DType::U8];

/// The operations there are. The order is the code in headers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    AllGather,
    ReduceScatter,
    AllReduce,
    Sum,
    GatherBytes,
    Broadcast,
    Barrier,
    Split,
}

impl Kind {
    const ALL: [Self; 8] = [
        Self::AllGather,
        Self::ReduceScatter,
        Self::AllReduce,
        Self::Sum,
        Self::GatherBytes,
        Self::Broadcast,
        Self::Barrier,
        Self::Split,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::AllGather => "all_gather",
            Self::ReduceScatter => "reduce_scatter",
            Self::AllReduce => "all_reduce",
            Self::Sum => "sum",
            Self::GatherBytes => "gather_bytes",
            Self::Broadcast => "broadcast",
            Self::Barrier => "barrier",
            Self::Split => "split",
        }
    }

    /// Whether ranks may call it from different lines and with different lengths: what ranks tell one another often stands
    /// in branches, and only the root of a broadcast knows its length.
    fn is_message(self) -> bool {
        matches!(self, Self::GatherBytes | Self::Broadcast)
    }
}

/// One operation of a group as one rank sees it: what, how much, and where in the code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Operation {
    /// How many operations the group had before.
    pub(crate) sequence: u64,
    pub(crate) kind: Kind,
    /// Bytes that this rank gives, all ranks' pieces together.
    pub(crate) num_bytes: u64,
    pub(crate) dtype: Option<DType>,
    pub(crate) root: Option<u32>,
    file: String,
    line: u32,
}

impl Operation {
    pub(crate) fn new(kind: Kind, place: &Location<'_>) -> Self {
        let file = place.file();
        // The end of a path says more than its beginning.
        let mut start = file.len().saturating_sub(MAX_HEADER_BYTES - FIXED_BYTES);
        while !file.is_char_boundary(start) {
            start += 1;
        }
        let file = file[start..].to_owned();
        Self { sequence: 0, kind, num_bytes: 0, dtype: None, root: None, file, line: place.line() }
    }

    /// With the bytes that this rank gives.
    pub(crate) fn of(mut self, num_bytes: usize, dtype: Option<DType>) -> Self {
        (self.num_bytes, self.dtype) = (num_bytes as u64, dtype);
        self
    }

    /// The source file of the call.
    pub fn file(&self) -> &str {
        &self.file
    }

    /// The line of the call.
    pub fn line(&self) -> u32 {
        self.line
    }

    /// Whether two ranks that say this are in the same operation.
    pub(crate) fn agrees_with(&self, other: &Self) -> bool {
        let what = |o: &Self| (o.sequence, o.kind, o.dtype, o.root);
        let how = |o: &Self| (o.num_bytes, o.line, o.file.clone());
        what(self) == what(other) && (self.kind.is_message() || how(self) == how(other))
    }

    /// The header.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut header = Vec::with_capacity(MAX_HEADER_BYTES);
        header.extend_from_slice(&self.sequence.to_le_bytes());
        header.extend_from_slice(&self.num_bytes.to_le_bytes());
        header.extend_from_slice(&self.root.unwrap_or(NO_ROOT).to_le_bytes());
        header.extend_from_slice(&self.line.to_le_bytes());
        header.push(self.kind as u8);
        let dtype = self.dtype.and_then(|dtype| DTYPES.iter().position(|&d| d == dtype));
        header.push(dtype.map_or(u8::MAX, |code| code as u8));
        header.extend_from_slice(self.file.as_bytes());
        header
    }

    /// What a header says; `None` if it is none.
    pub(crate) fn decode(header: &[u8]) -> Option<Self> {
        let (sequence, rest) = header.split_first_chunk()?;
        let (num_bytes, rest) = rest.split_first_chunk()?;
        let (root, rest) = rest.split_first_chunk()?;
        let (line, rest) = rest.split_first_chunk()?;
        let ([kind, dtype], file) = rest.split_first_chunk()?;
        let root = u32::from_le_bytes(*root);
        Some(Self {
            sequence: u64::from_le_bytes(*sequence),
            kind: *Kind::ALL.get(usize::from(*kind))?,
            num_bytes: u64::from_le_bytes(*num_bytes),
            dtype: match *dtype {
                u8::MAX => None,
                code => Some(*DTYPES.get(usize::from(code))?),
            },
            root: (root != NO_ROOT).then_some(root),
            file: std::str::from_utf8(file).ok()?.to_owned(),
            line: u32::from_le_bytes(*line),
        })
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}`", self.kind.name())?;
        if !matches!(self.kind, Kind::Barrier | Kind::Split) {
            write!(f, " of {} bytes", self.num_bytes)?;
        }
        if let Some(dtype) = self.dtype {
            write!(f, " in {dtype}")?;
        }
        if let Some(root) = self.root {
            write!(f, " from rank {root}")?;
        }
        write!(f, " (operation {}) at {}:{}", self.sequence, self.file, self.line)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn operations() -> impl Strategy<Value = Operation> {
        let dtype = prop_oneof![Just(None), prop::sample::select(&DTYPES[..]).prop_map(Some)];
        let root = prop::option::of(0..NO_ROOT);
        (any::<u64>(), 0..Kind::ALL.len(), any::<u64>(), dtype, root, ".{0,20}", any::<u32>()).prop_map(
            |(sequence, kind, num_bytes, dtype, root, file, line)| Operation {
                sequence,
                kind: Kind::ALL[kind],
                num_bytes,
                dtype,
                root,
                file,
                line,
            },
        )
    }

    proptest! {
        #[test]
        fn headers_read_back(operation in operations()) {
            prop_assert_eq!(Operation::decode(&operation.encode()), Some(operation));
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            if let Some(operation) = Operation::decode(&bytes) {
                prop_assert_eq!(operation.encode(), bytes);
            }
        }
    }

    #[test]
    fn codes_are_positions() {
        for (code, kind) in Kind::ALL.into_iter().enumerate() {
            assert_eq!(kind as usize, code);
        }
    }

    #[test]
    fn headers_fit_for_any_path() {
        let header = Operation::new(Kind::Barrier, Location::caller()).encode();
        assert!(header.len() <= MAX_HEADER_BYTES);
        assert!(Operation::decode(&header).unwrap().file().ends_with("operation.rs"));
    }

    #[test]
    fn messages_may_differ_in_place_and_length_and_nothing_else_may() {
        let at = |kind, line| Operation { line, ..Operation::new(kind, Location::caller()) };
        for kind in Kind::ALL {
            let (a, b) = (at(kind, 1), at(kind, 2));
            assert!(a.agrees_with(&a));
            assert_eq!(a.agrees_with(&b), kind.is_message(), "{kind:?}");
            assert_eq!(a.agrees_with(&a.clone().of(8, None)), kind.is_message(), "{kind:?}");
            assert!(!a.agrees_with(&Operation { root: Some(1), ..a.clone() }));
            assert!(!a.agrees_with(&Operation { sequence: 1, ..a.clone() }));
            assert!(!a.agrees_with(&a.clone().of(0, Some(DType::F32))));
        }
    }
}
