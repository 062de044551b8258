//! What is asked of the operating system about cores.
#![cfg_attr(target_os = "linux", expect(unsafe_code, reason = "calls the C library"))]

/// The cores that this process may run on, in order; empty where the system does not tell.
pub(crate) fn allowed_cores() -> Vec<usize> {
    #[cfg(all(target_os = "linux", not(miri)))]
    {
        // SAFETY: a `cpu_set_t` is an array of integers, for which zeros are a value.
        let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
        // SAFETY: the pointer is valid for the size that is given with it.
        let failed = unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &raw mut set) } != 0;
        if failed {
            return Vec::new();
        }
        let num_cores = libc::CPU_SETSIZE as usize;
        // SAFETY: the core is below CPU_SETSIZE.
        (0..num_cores).filter(|&core| unsafe { libc::CPU_ISSET(core, &set) }).collect()
    }
    #[cfg(not(all(target_os = "linux", not(miri))))]
    Vec::new()
}

/// Keeps the calling thread on a core, if the system lets it.
pub(crate) fn pin_to_core(core: usize) {
    #[cfg(all(target_os = "linux", not(miri)))]
    {
        // SAFETY: a `cpu_set_t` is an array of integers, for which zeros are a value.
        let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
        if core < libc::CPU_SETSIZE as usize {
            // SAFETY: the core is below CPU_SETSIZE.
            unsafe { libc::CPU_SET(core, &mut set) };
            // SAFETY: the pointer is valid for the size that is given with it. A refusal leaves the thread where it is.
            unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set) };
        }
    }
    #[cfg(not(all(target_os = "linux", not(miri))))]
    let _ = core;
}

/// How many threads use the machine fully: one a core that this process may run on.
pub(crate) fn num_cores() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}
