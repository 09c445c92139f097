//! Runs the real command as a child with limits on processor time, wall-clock time and address space, and judges how it
//! ended.
//!
//! ```text
//! sh: ulimit -S -t, ulimit -v; exec tightfit ..   every few ms: /proc/PID/status, VmHWM
//!                                                 at the end: code, signal, standard output and error
//! ```

use std::fs::{self, File};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

const TIGHTFIT: &str = env!("CARGO_BIN_EXE_tightfit");
/// Processor seconds after which a child works without end.
const CPU_SECONDS: u64 = 10;
/// Wall-clock time without any processor time after which a child waits without end. Longer than a cache waits for a lock.
const IDLE_LIMIT: Duration = Duration::from_secs(25);
/// Address space.
const ADDRESS_SPACE_KIB: u64 = 4 << 20;
/// The most memory that may be resident for any input.
const RESIDENT_KIB: u64 = 1 << 20;
/// Lines of the longest message. Each cause of an error is a separate line, and a wrong option comes with the usage.
const MESSAGE_LINES: usize = 24;
const SIGXCPU: i32 = 24;

/// How a child ended.
pub struct Ending {
    pub status: ExitStatus,
    pub stdout: String,
    pub stderr: String,
    pub peak_kib: u64,
    stopped: bool,
}

/// Runs the command with the words of `arguments` in `folder`, with nothing of this machine's settings, until it ends, or
/// until [`IDLE_LIMIT`].
pub fn run(folder: &Path, arguments: &str) -> Ending {
    let outputs = tempfile::tempdir().unwrap();
    let limits = format!("ulimit -c 0; ulimit -S -t {CPU_SECONDS}; ulimit -v {ADDRESS_SPACE_KIB}; exec \"$0\" \"$@\"");
    let mut command = Command::new("/bin/sh");
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("TIGHTFIT_")) {
        command.env_remove(name);
    }
    command.arg("-c").arg(limits).arg(TIGHTFIT).args(arguments.split_whitespace()).current_dir(folder);
    command.env("HOME", folder).env_remove("XDG_CACHE_HOME").env("RUST_BACKTRACE", "1");
    command.env("TIGHTFIT_CACHE", "none").env("TIGHTFIT_THREADS", "1");
    let file = |name: &str| File::create(outputs.path().join(name)).unwrap();
    command.stdin(Stdio::null()).stdout(file("stdout")).stderr(file("stderr"));
    let (mut child, started) = (command.spawn().unwrap(), Instant::now());
    let (mut peak_kib, mut stopped) = (0, false);
    let (mut worked, mut since) = (0, Instant::now());
    let status = loop {
        // Short runs are looked at often, since memory that a child takes between the last look and its end is not seen.
        let is_short = started.elapsed() < Duration::from_millis(200);
        std::thread::sleep(Duration::from_millis(if is_short { 2 } else { 10 }));
        peak_kib = peak_kib.max(most_resident(child.id()));
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        let ticks = processor_ticks(child.id());
        if ticks != worked {
            (worked, since) = (ticks, Instant::now());
        } else if since.elapsed() > IDLE_LIMIT {
            stopped = true;
            child.kill().unwrap();
        }
    };
    let read = |name| String::from_utf8_lossy(&fs::read(outputs.path().join(name)).unwrap()).into_owned();
    Ending { status, stdout: read("stdout"), stderr: read("stderr"), peak_kib, stopped }
}

/// The most memory that a process has had resident so far; 0 where it has ended.
fn most_resident(process: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

/// The processor time that a process has had, in the system's ticks; 0 where it has ended.
fn processor_ticks(process: u32) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    // The name, in parentheses, may hold anything. Fields 14 and 15 are user and system time, and 3 is the first after it.
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields).split_whitespace();
    fields.skip(11).take(2).filter_map(|field| field.parse::<u64>().ok()).sum()
}

impl Ending {
    pub fn succeeded(&self) -> bool {
        self.status.success()
    }

    /// The fault of a command's end, if any: it ended otherwise than with a promised exit code and, if it failed, an error message.
    pub fn trouble(&self) -> Option<&'static str> {
        let panicked = self.stderr.contains("panicked at") || self.stderr.contains("stack backtrace");
        match (self.status.code(), self.status.signal()) {
            _ if self.stopped => Some("a hang"),
            (_, Some(SIGXCPU)) => Some("work without end"),
            (Some(101), _) => Some("a panic"),
            _ if panicked => Some("a panic"),
            // For example for want of memory.
            (_, Some(_)) => Some("a signal that nobody sent"),
            _ if self.peak_kib > RESIDENT_KIB => Some("too much memory"),
            (Some(0), _) => None,
            (Some(1..=3), _) if self.explains() => None,
            _ => Some("an unexplained exit code"),
        }
    }

    /// Whether standard error says in few lines what failed. Warnings and the log may come before.
    fn explains(&self) -> bool {
        let message = self.stderr.lines().skip_while(|line| !line.starts_with("error: "));
        (1..=MESSAGE_LINES).contains(&message.count())
    }
}
