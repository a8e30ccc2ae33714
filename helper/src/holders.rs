//! Who holds a GPU: processes with a context, as NVML lists them, and clients that have its device file open.
//!
//! They are named, never ended.

use std::fmt;
use std::path::Path;

use migperf_core::device::GpuProcess;
use nix::unistd::{Uid, User};

use std::os::unix::fs::MetadataExt as _;

/// A process that is in the way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// Its id.
    pub pid: u32,
    /// Its user, where it can be seen.
    pub user: Option<String>,
    /// Its program.
    pub program: String,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let user = self.user.as_deref().unwrap_or("unknown");
        write!(f, "pid {} of user {user} ({})", self.pid, self.program)?;
        self.remedy().map_or(Ok(()), |remedy| write!(f, ": {remedy}"))
    }
}

impl Holder {
    fn of(pid: u32, named: Option<&str>) -> Self {
        let process = Path::new("/proc").join(pid.to_string());
        let user = std::fs::metadata(&process).ok().map(|found| user_name(found.uid()));
        let program = std::fs::read_to_string(process.join("comm")).map(|name| name.trim().to_owned());
        let program = program.ok().or_else(|| named.map(str::to_owned));
        Self { pid, user, program: program.unwrap_or_else(|| "gone".to_owned()) }
    }

    /// What to do about programs that are known to hold GPUs without working on them.
    fn remedy(&self) -> Option<&'static str> {
        // The kernel keeps 15 characters of a name.
        match self.program.as_str() {
            "nv-hostengine" => Some("`systemctl stop nvidia-dcgm`, and start it again afterwards"),
            "nvidia-persiste" => Some("`systemctl stop nvidia-persistenced`, and start it again afterwards"),
            name if name.starts_with("nvsm") => Some("`systemctl stop nvsm`, and start it again afterwards"),
            "dcgm-exporter" => Some("stop the exporter, and start it again afterwards"),
            _ => None,
        }
    }
}

fn user_name(uid: u32) -> String {
    User::from_uid(Uid::from_raw(uid)).ok().flatten().map_or_else(|| uid.to_string(), |user| user.name)
}

/// What is about to be done to a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// Instances are created or destroyed.
    Instances,
    /// The MIG mode is switched, for which no client may be there at all.
    Mode,
}

/// Everyone who is in the way of a change of the GPU whose device file has this number. `processes` are NVML's; nobody
/// but this process and its hand is ours.
///
/// The persistence daemon keeps the device file open and is not in the way of instances, only of the mode. A client that
/// has the control file open and no GPU's may take any at any moment: it is in the way of the mode.
#[must_use]
pub fn in_the_way(devices: &Path, minor: u32, processes: &[GpuProcess], change: Change) -> Vec<Holder> {
    let mut holders: Vec<Holder> =
        processes.iter().map(|process| Holder::of(process.pid, process.program.as_deref())).collect();
    let directory = std::fs::canonicalize(devices).unwrap_or_else(|_| devices.to_owned());
    let own = std::process::id();
    for pid in numbers(Path::new("/proc")) {
        if pid == own || holders.iter().any(|holder| holder.pid == pid) {
            continue;
        }
        let open = open_files(pid, &directory);
        let this = open.iter().any(|name| *name == format!("nvidia{minor}"));
        let control = open.iter().any(|name| name == "nvidiactl");
        let others = open.iter().any(|name| name.strip_prefix("nvidia").is_some_and(|n| n.parse::<u32>().is_ok()));
        if !this && !control && !others {
            continue;
        }
        let holder = Holder::of(pid, None);
        if is_hand(pid, own, &holder.program) {
            continue;
        }
        let persistence = holder.program == "nvidia-persiste";
        let ours = holder.program.starts_with("migperf");
        let blocks = match change {
            Change::Instances => this && !persistence,
            Change::Mode => this || ours || !others,
        };
        if blocks {
            holders.push(holder);
        }
    }
    holders
}

/// A hand of this helper: its child, of the same name.
fn is_hand(pid: u32, own: u32, program: &str) -> bool {
    program == "migperf-helper" && stat(pid).is_some_and(|(parent, _)| parent == own)
}

/// A process's parent, and when it started, in clock ticks since boot.
#[must_use]
pub fn stat(pid: u32) -> Option<(u32, u64)> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may hold anything.
    let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
    Some((fields.get(1)?.parse().ok()?, fields.get(19)?.parse().ok()?))
}

fn numbers(directory: &Path) -> Vec<u32> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().filter_map(Result::ok);
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// Names of files right in `directory` that a process has open.
fn open_files(pid: u32, directory: &Path) -> Vec<String> {
    let files = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().filter_map(Result::ok);
    let targets = files.filter_map(|file| std::fs::read_link(file.path()).ok());
    let inside = targets.filter(|target| target.parent() == Some(directory));
    inside.filter_map(|target| Some(target.file_name()?.to_str()?.to_owned())).collect()
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};

    use super::*;

    /// A program of a name that has files open until it is dropped.
    struct Client(Child);

    impl Client {
        fn new(folder: &Path, name: &str, open: &[&str]) -> Self {
            let program = folder.join(name);
            std::os::unix::fs::symlink("/bin/sleep", &program).unwrap();
            let mut script = String::new();
            for (number, file) in open.iter().enumerate() {
                script.push_str(&format!("exec {}<{}; ", number + 3, folder.join(file).display()));
            }
            script.push_str(&format!("exec {} 60", program.display()));
            let child = Command::new("sh").args(["-c", &script]).spawn().unwrap();
            let client = Self(child);
            while std::fs::read_to_string(format!("/proc/{}/comm", client.0.id())).unwrap().trim()
                != &name[..name.len().min(15)]
            {
                std::thread::sleep(std::time::Duration::from_millis(2));
            }
            client
        }
    }

    impl Drop for Client {
        fn drop(&mut self) {
            self.0.kill().unwrap();
            self.0.wait().unwrap();
        }
    }

    fn check(name: &str, open: &[&str], instances: bool, mode: bool) {
        let folder = tempfile::tempdir().unwrap();
        for file in ["nvidiactl", "nvidia0", "nvidia1", "nvidia-uvm"] {
            std::fs::write(folder.path().join(file), "").unwrap();
        }
        let _client = Client::new(folder.path(), name, open);
        for (change, blocks) in [(Change::Instances, instances), (Change::Mode, mode)] {
            let found = in_the_way(folder.path(), 0, &[], change);
            assert_eq!(!found.is_empty(), blocks, "{name} {open:?} {change:?}: {found:?}");
        }
    }

    #[test]
    fn clients_are_in_the_way_of_what_they_would_break() {
        check("nvtop", &["nvidiactl", "nvidia0"], true, true);
        check("nvtop", &["nvidiactl"], false, true);
        check("python", &["nvidiactl", "nvidia1"], false, false);
        check("migperfd", &["nvidiactl", "nvidia1"], false, true);
        check("nvidia-persistenced", &["nvidiactl", "nvidia0"], false, true);
        check("nv-hostengine", &["nvidiactl", "nvidia0", "nvidia1"], true, true);
        check("cat", &["nvidia-uvm"], false, false);
    }

    #[test]
    fn holders_are_named_with_their_remedy() {
        let own = Holder::of(std::process::id(), None).to_string();
        assert!(own.starts_with(&format!("pid {} of user ", std::process::id())), "{own}");
        let holder = Holder { pid: 7, user: Some("root".to_owned()), program: "nv-hostengine".to_owned() };
        assert_eq!(
            holder.to_string(),
            "pid 7 of user root (nv-hostengine): `systemctl stop nvidia-dcgm`, and start it again afterwards"
        );
    }
}
