//! How much memory this process holds, as the operating system counts it.
//!
//! Numbers: bytes; the kernel reports kibibytes.
//! Source:  `/proc/self/status` on Linux (proc_pid_status(5)); other systems have no figures of a process here.

/// Resident memory of this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResidentMemory {
    /// Bytes resident at the time of reading (`VmRSS`).
    pub current_bytes: u64,
    /// The most bytes that were ever resident (`VmHWM`).
    pub peak_bytes: u64,
    /// Resident bytes that belong to no file, hence cannot be dropped and read again (`RssAnon`).
    pub anonymous_bytes: u64,
}

impl ResidentMemory {
    /// The figures of this moment, or `None` where the system does not give them.
    pub fn read() -> Option<Self> {
        Self::parse(&std::fs::read_to_string("/proc/self/status").ok()?)
    }

    /// The peak in GiB, the unit of the metric `peak_rss_gib`.
    pub fn peak_gib(&self) -> f64 {
        self.peak_bytes as f64 / f64::from(1 << 30)
    }

    fn parse(status: &str) -> Option<Self> {
        Some(Self {
            current_bytes: field_bytes(status, "VmRSS")?,
            peak_bytes: field_bytes(status, "VmHWM")?,
            anonymous_bytes: field_bytes(status, "RssAnon")?,
        })
    }
}

/// Bytes that this process may still take without pushing others out: what the system calls available, within the limits of
/// its control group and its own address space. `None` where nothing is told.
pub fn available_memory() -> Option<u64> {
    let mut system = sysinfo::System::new().ok()?;
    system.refresh_memory();
    let of_system = Some(system.available_memory()).filter(|&bytes| bytes > 0);
    let of_group = system.cgroup_limits().filter(|limits| limits.total_memory > 0).map(|limits| limits.free_memory);
    of_system.into_iter().chain(of_group).chain(left_of_address_space()).min()
}

/// Bytes that the limit on this process's address space (`ulimit -v`) leaves.
fn left_of_address_space() -> Option<u64> {
    #[cfg(unix)]
    {
        let limit = rustix::process::getrlimit(rustix::process::Resource::As).current?;
        let status = std::fs::read_to_string("/proc/self/status").ok()?;
        Some(limit.saturating_sub(field_bytes(&status, "VmSize")?))
    }
    #[cfg(not(unix))]
    None
}

fn field_bytes(status: &str, name: &str) -> Option<u64> {
    let rest = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    let kib: u64 = rest.trim().strip_suffix("kB")?.trim_end().parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATUS: &str =
        "Name:\ttune\nVmPeak:\t  900 kB\nVmHWM:\t    2048 kB\nVmRSS:\t    1024 kB\nRssAnon:\t     512 kB\n";

    #[test]
    fn fields_are_found_by_their_whole_name() {
        let memory = ResidentMemory::parse(STATUS).expect("all three fields are there");
        assert_eq!(memory.current_bytes, 1024 * 1024);
        assert_eq!(memory.peak_bytes, 2048 * 1024);
        assert_eq!(memory.anonymous_bytes, 512 * 1024);
        assert_eq!(memory.peak_gib(), 2.0 / 1024.0);
    }

    #[test]
    fn a_missing_or_odd_field_gives_nothing() {
        assert_eq!(ResidentMemory::parse(""), None);
        assert_eq!(ResidentMemory::parse(&STATUS.replace("RssAnon", "RssOther")), None);
        assert_eq!(ResidentMemory::parse(&STATUS.replace("1024 kB", "1024 MB")), None);
        assert_eq!(ResidentMemory::parse(&STATUS.replace("1024 kB", "18446744073709551615 kB")), None);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn the_peak_sees_a_large_buffer_and_keeps_it() {
        let before = ResidentMemory::read().expect("Linux gives the figures");
        let buffer = vec![1_u8; 64 << 20];
        let held = ResidentMemory::read().expect("Linux gives the figures");
        assert!(held.current_bytes > before.current_bytes + (48 << 20), "{before:?} {held:?}");
        assert!(held.anonymous_bytes > before.anonymous_bytes + (48 << 20), "{before:?} {held:?}");
        drop(std::hint::black_box(buffer));
        let after = ResidentMemory::read().expect("Linux gives the figures");
        assert!(after.peak_bytes >= before.peak_bytes + (48 << 20), "{before:?} {after:?}");
    }
}
