//! Runs the real command as a child with limits on processor time, wall-clock time and address space, and judges how it
//! ended.
//!
//! ```text
//! sh: ulimit -S -t, ulimit -v; exec tightfit ..   every few ms: /proc/PID/status, VmHWM
//!                                                 at the end: code, signal, standard output and error
//! ```

use std::ffi::OsString;
use std::fs::{self, File};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

pub const TIGHTFIT: &str = env!("CARGO_BIN_EXE_tightfit");
/// Processor seconds after which a child works without end.
const CPU_SECONDS: u64 = 10;
/// Wall-clock time without any processor time after which a child waits without end. Longer than a cache waits for a lock.
const IDLE_LIMIT: Duration = Duration::from_secs(25);
/// Address space, which also has the stacks of a thousand threads in it.
const ADDRESS_SPACE_KIB: u64 = 4 << 20;
/// The most memory that may be resident for any input.
pub const RESIDENT_KIB: u64 = 1 << 20;
/// Lines of the longest message. Each cause of an error is a separate line, and a wrong option comes with the usage.
const MESSAGE_LINES: usize = 24;
const SIGXCPU: i32 = 24;

/// A fault in the way that a child ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    Panic,
    /// Ended by a signal that nobody sent, for example for want of memory.
    Abort,
    /// Waits forever.
    Hang,
    /// Works without end.
    TimeOut,
    /// More than [`RESIDENT_KIB`].
    Memory,
    /// An exit code that is not promised, or a failure without an error message.
    Code,
    /// The command itself ended well, and did harm.
    Harm,
}

/// The environment and redirections of a child.
#[derive(Clone, Default)]
pub struct Setup {
    pub variables: Vec<(OsString, OsString)>,
    /// Shell commands before the command takes the shell's place, such as more limits.
    pub before: String,
    /// Redirections of the command.
    pub redirect: String,
}

impl Setup {
    pub fn redirected(redirect: &str) -> Setup {
        Setup { redirect: redirect.to_owned(), ..Setup::default() }
    }

    pub fn with(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Setup {
        self.variables.push((name.into(), value.into()));
        self
    }
}

/// How a child ended.
pub struct Ending {
    pub status: ExitStatus,
    pub stdout: String,
    pub stderr: String,
    pub peak_kib: u64,
    stopped: bool,
}

/// A child that runs.
pub struct Running {
    child: Child,
    started: Instant,
    peak_kib: u64,
    outputs: tempfile::TempDir,
}

/// Starts the command in `folder` with nothing of this machine's settings.
pub fn start(folder: &Path, arguments: &[OsString], setup: &Setup) -> Running {
    let outputs = tempfile::tempdir().unwrap();
    let script = format!(
        "ulimit -c 0; ulimit -S -t {CPU_SECONDS}; ulimit -v {ADDRESS_SPACE_KIB}; {} exec \"$0\" \"$@\" {}",
        setup.before, setup.redirect
    );
    // A test that is started in the background or under nohup ignores signals, and its children would as well.
    let mut command = Command::new("/usr/bin/env");
    command.args(["--default-signal=HUP,INT,QUIT,TERM", "/bin/sh"]);
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("TIGHTFIT_")) {
        command.env_remove(name);
    }
    command.arg("-c").arg(script).arg(TIGHTFIT).args(arguments).current_dir(folder);
    command.env("HOME", folder).env_remove("XDG_CACHE_HOME").env("RUST_BACKTRACE", "1");
    command.env("TIGHTFIT_CACHE", "none").env("TIGHTFIT_THREADS", "1");
    command.envs(setup.variables.iter().map(|(name, value)| (name, value)));
    let file = |name: &str| File::create(outputs.path().join(name)).unwrap();
    command.stdin(Stdio::null()).stdout(file("stdout")).stderr(file("stderr"));
    Running { child: command.spawn().unwrap(), started: Instant::now(), peak_kib: 0, outputs }
}

impl Running {
    /// Waits for the end, or makes one after [`IDLE_LIMIT`].
    pub fn finish(mut self) -> Ending {
        let mut stopped = false;
        let (mut worked, mut since) = (0, Instant::now());
        let status = loop {
            // Short runs are looked at often, since memory that a child takes between the last look and its end is not
            // seen.
            let elapsed = self.started.elapsed();
            std::thread::sleep(Duration::from_millis(if elapsed < Duration::from_millis(200) { 2 } else { 10 }));
            self.peak_kib = self.peak_kib.max(most_resident(self.child.id()));
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            let ticks = processor_ticks(self.child.id());
            if ticks != worked {
                (worked, since) = (ticks, Instant::now());
            } else if since.elapsed() > IDLE_LIMIT {
                stopped = true;
                self.child.kill().unwrap();
            }
        };
        let read = |name| String::from_utf8_lossy(&fs::read(self.outputs.path().join(name)).unwrap()).into_owned();
        Ending { status, stdout: read("stdout"), stderr: read("stderr"), peak_kib: self.peak_kib, stopped }
    }
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

    /// The fault of a command's end, if any. `written`: its standard error could be written.
    pub fn trouble(&self, written: bool) -> Option<Trouble> {
        let panicked = self.stderr.contains("panicked at") || self.stderr.contains("stack backtrace");
        match (self.status.code(), self.status.signal()) {
            _ if self.stopped => Some(Trouble::Hang),
            (_, Some(SIGXCPU)) => Some(Trouble::TimeOut),
            (Some(101), _) => Some(Trouble::Panic),
            _ if panicked => Some(Trouble::Panic),
            (_, Some(_)) => Some(Trouble::Abort),
            _ if self.peak_kib > RESIDENT_KIB => Some(Trouble::Memory),
            (Some(0), _) => None,
            (Some(1..=3), _) if !written || self.explains() => None,
            (Some(130), _) => None,
            _ => Some(Trouble::Code),
        }
    }

    /// Whether standard error says in few lines what failed. Warnings and the log may come before.
    fn explains(&self) -> bool {
        let message = self.stderr.lines().skip_while(|line| !line.starts_with("error: "));
        (1..=MESSAGE_LINES).contains(&message.count())
    }
}
