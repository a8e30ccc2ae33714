//! Facts about this machine that go with every result.

use std::fs;

use migperf_core::device::Reading;
use migperf_core::record::{Host, Owner};
use migperf_core::units::Bytes;
use nix::sched::{CpuSet, sched_getaffinity};
use nix::unistd::{Pid, Uid, User};

/// Reads them.
#[must_use]
pub fn read() -> Host {
    let name = nix::sys::utsname::uname();
    let (nodename, release) = name
        .as_ref()
        .map(|name| (name.nodename().to_string_lossy().into_owned(), name.release().to_string_lossy().into_owned()))
        .unwrap_or_default();
    Host {
        name: nodename,
        id: host_id(),
        kernel: release,
        processor: field("/proc/cpuinfo", "model name"),
        processors: u32::try_from(processors().len()).unwrap_or(u32::MAX),
        memory: field("/proc/meminfo", "MemTotal").map(|text| {
            let kibibytes = text.split_whitespace().next().and_then(|number| number.parse::<u64>().ok()).unwrap_or(0);
            Bytes(kibibytes * 1024)
        }),
    }
}

/// The machine's id, hashed as `machine-id(5)` asks of those who pass it on.
fn host_id() -> Reading<String> {
    Reading::from(fs::read_to_string("/etc/machine-id")).map(|id| {
        use std::fmt::Write as _;
        let digest = <sha2::Sha256 as sha2::Digest>::digest(format!("migperf:{}", id.trim()));
        digest[..16].iter().fold(String::new(), |mut text, byte| {
            let _ = write!(text, "{byte:02x}");
            text
        })
    })
}

fn field(file: &str, name: &str) -> Reading<String> {
    match fs::read_to_string(file) {
        Err(error) => Reading::Absent(format!("{file}: {error}")),
        Ok(text) => {
            text.lines().filter_map(|line| line.split_once(':')).find(|(key, _)| key.trim() == name).map_or_else(
                || Reading::Absent(format!("{file} has no {name}")),
                |(_, v)| Reading::Value(v.trim().to_owned()),
            )
        }
    }
}

/// The logical processors that this process may run on, in order.
#[must_use]
pub fn processors() -> Vec<u32> {
    let Ok(set) = sched_getaffinity(Pid::from_raw(0)) else { return vec![0] };
    (0..CpuSet::count())
        .filter(|cpu| set.is_set(*cpu).unwrap_or(false))
        .filter_map(|cpu| u32::try_from(cpu).ok())
        .collect()
}

/// A user as results name them.
#[must_use]
pub fn owner(uid: u32) -> Owner {
    Owner { uid, name: User::from_uid(Uid::from_raw(uid)).ok().flatten().map(|user| user.name) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_has_processors_and_memory() {
        let host = read();
        assert!(host.processors >= 1);
        assert!(host.memory.value().is_some_and(|memory| memory.0 > 1 << 28));
        assert!(!host.kernel.is_empty());
    }
}
