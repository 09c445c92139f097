//! The memory this process may still use: the minimum of the machine's free memory and the limits of its control
//! groups.

use std::path::{Path, PathBuf};

use tightfit_units::Bytes;

/// The memory left under one limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Free {
    /// Bytes left.
    pub bytes: Bytes,
    /// The limit.
    pub limit: String,
}

/// The memory left under the tightest limit; `None` if the system does not report it.
pub fn free() -> Option<Free> {
    free_under(Path::new("/"))
}

/// As [`free`], of a system whose files lie under `root`.
fn free_under(root: &Path) -> Option<Free> {
    let machine = machine(root).map(|bytes| Free { bytes, limit: "the machine's available memory".to_owned() });
    machine.into_iter().chain(control_groups(root)).min_by_key(|free| free.bytes)
}

/// The kernel's estimate of memory available without swapping.
fn machine(root: &Path) -> Option<Bytes> {
    let text = std::fs::read_to_string(root.join("proc/meminfo")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    Some(Bytes(line.split_whitespace().next()?.parse::<u64>().ok()?.saturating_mul(1024)))
}

/// The memory left in each control group above this process: for version 2, the group of line `0::`; for version 1,
/// the group of the memory controller.
fn control_groups(root: &Path) -> Vec<Free> {
    let text = std::fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    let mut found = Vec::new();
    for line in text.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(group)) = (parts.next(), parts.next()) else { continue };
        let (base, limit, usage, cache) = if controllers.is_empty() {
            ("sys/fs/cgroup", "memory.max", "memory.current", "inactive_file")
        } else if controllers.split(',').any(|controller| controller == "memory") {
            ("sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        } else {
            continue;
        };
        // Inside a container, the group's path may be the host's, of which only the top is visible.
        let mut folder = PathBuf::from(group.trim_start_matches('/'));
        loop {
            let here = root.join(base).join(&folder);
            let number = |name: &str| std::fs::read_to_string(here.join(name)).ok()?.trim().parse::<u64>().ok();
            if let (Some(most), Some(used)) = (number(limit), number(usage)) {
                let reclaimable = statistic(&here.join("memory.stat"), cache).unwrap_or(0);
                let bytes = Bytes(most.saturating_sub(used.saturating_sub(reclaimable)));
                found.push(Free { bytes, limit: format!("{limit} of the control group /{}", folder.display()) });
            }
            if !folder.pop() {
                break;
            }
        }
    }
    found
}

/// One line of a `memory.stat`.
fn statistic(path: &Path, name: &str) -> Option<u64> {
    let text = std::fs::read_to_string(path).ok()?;
    let mut lines = text.lines().filter_map(|line| line.split_once(' '));
    lines.find_map(|(key, value)| if key == name { value.trim().parse().ok() } else { None })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A system with these files.
    fn system(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        root
    }

    const MACHINE: (&str, &str) = ("proc/meminfo", "MemTotal: 9000 kB\nMemAvailable:    4000 kB\n");

    #[test]
    fn the_tightest_limit_binds() {
        let version_2 = system(&[
            MACHINE,
            ("proc/self/cgroup", "0::/user/job\n"),
            ("sys/fs/cgroup/user/job/memory.max", "max\n"),
            ("sys/fs/cgroup/user/job/memory.current", "100\n"),
            ("sys/fs/cgroup/user/memory.max", "5000\n"),
            ("sys/fs/cgroup/user/memory.current", "3000\n"),
            ("sys/fs/cgroup/user/memory.stat", "anon 2500\ninactive_file 500\n"),
        ]);
        let limit = "memory.max of the control group /user".to_owned();
        assert_eq!(free_under(version_2.path()), Some(Free { bytes: Bytes(2500), limit }));

        let version_1 = system(&[
            MACHINE,
            ("proc/self/cgroup", "5:cpu:/x\n4:memory,hugetlb:/docker/1\n"),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "2000000\n"),
            ("sys/fs/cgroup/memory/memory.usage_in_bytes", "1500000\n"),
        ]);
        let limit = "memory.limit_in_bytes of the control group /".to_owned();
        assert_eq!(free_under(version_1.path()), Some(Free { bytes: Bytes(500_000), limit }));
    }

    #[test]
    fn without_groups_the_machine_binds_and_without_files_nothing() {
        let free = free_under(system(&[MACHINE]).path()).unwrap();
        assert_eq!(free.bytes, Bytes(4_096_000));
        assert_eq!(free_under(system(&[]).path()), None);
    }
}
