//! `tightfit run` and `doctor --preload` on libraries made for the test by the C compiler and a Python that is a shell
//! script: what the command is given, what passes through, which form is chosen, and what is said where something is missing.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use tempfile::TempDir;

const REAL: &str = "int cudnnCreate(void) { return 0; } int cudnnGetVersion(void) { return 91900; }";
const NEWER: &str = "int cudnnCreate(void) { return 0; } int cudnnNewThing(void) { return 0; }";
const OURS: &str = "int cudnnCreate(void) { return 0; } int cudnnGetVersion(void) { return 91900; } \
                    void tightfitSetLayer(const char *name) { (void)name; }";

/// A virtual environment with cuDNN's wheel, and our library in a folder of its own.
struct Place {
    folder: TempDir,
}

impl Place {
    fn new(real: &str) -> Place {
        let place = Place { folder: tempfile::tempdir().unwrap() };
        for folder in ["venv/bin", "preload", "venv/lib/python3.12/site-packages/nvidia/cudnn/lib"] {
            fs::create_dir_all(place.path(folder)).unwrap();
        }
        let soname = ["-Wl,-soname,libcudnn.so.9"];
        place.compile(real, &place.cudnn(), &soname);
        place.compile(OURS, &place.path("preload/libtightfit_preload.so"), &soname);
        place.compile(OURS, &place.path("preload/libtightfit_preload_plain.so"), &[]);
        let answer = format!("#!/bin/sh\nprintf '%s\\n' \"$0\" 3.12.1 '{}'\n", place.site().display());
        place.executable("venv/bin/python3", &answer);
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        // What the command prints has no links in it.
        fs::canonicalize(self.folder.path()).unwrap().join(name)
    }

    fn site(&self) -> PathBuf {
        self.path("venv/lib/python3.12/site-packages")
    }

    fn cudnn(&self) -> PathBuf {
        self.site().join("nvidia/cudnn/lib/libcudnn.so.9")
    }

    fn python(&self) -> String {
        self.path("venv/bin/python3").display().to_string()
    }

    fn executable(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).unwrap();
        fs::set_permissions(self.path(name), fs::Permissions::from_mode(0o755)).unwrap();
    }

    fn compile(&self, source: &str, library: &Path, options: &[&str]) {
        let file = self.path("source.c");
        fs::write(&file, source).unwrap();
        let status = Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(library).arg(&file).args(options).status();
        assert!(status.unwrap().success(), "{source}");
    }

    /// The command with nothing of this machine's settings.
    fn tightfit(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tightfit"));
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("TIGHTFIT_")) {
            command.env_remove(name);
        }
        for name in ["LD_PRELOAD", "VIRTUAL_ENV", "CONDA_PREFIX"] {
            command.env_remove(name);
        }
        command.env("TIGHTFIT_PRELOAD", self.path("preload")).args(arguments).stdin(Stdio::null());
        command.current_dir(self.path("preload"));
        command
    }

    /// Runs `script` through `run` with options, cuDNN being that of the fake environment.
    fn run(&self, options: &str, script: &str) -> Output {
        let cudnn = self.cudnn().display().to_string();
        let mut arguments: Vec<&str> = vec!["run", "--cudnn", &cudnn];
        arguments.extend(options.split_whitespace());
        arguments.extend(["--", "sh", "-c", script]);
        self.tightfit(&arguments).output().unwrap()
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// What the command saw of a variable; `None` if it was not set.
fn seen(output: &Output, name: &str) -> Option<String> {
    assert!(output.status.success(), "{}", text(&output.stderr));
    let environment = text(&output.stdout);
    environment.lines().find_map(|line| Some(line.strip_prefix(name)?.strip_prefix('=')?.to_owned()))
}

#[test]
fn settings_reach_the_command_as_environment_variables() {
    let place = Place::new(REAL);
    let output = place.run("--workspace 512MiB --sizes power-of-two --tune cached --devices 0,1 --exact-class", "env");
    let ours = place.path("preload/libtightfit_preload.so").display().to_string();
    for (name, expected) in [
        ("LD_PRELOAD", ours.as_str()),
        ("TIGHTFIT_CUDNN", &place.cudnn().display().to_string()),
        ("TIGHTFIT_WORKSPACE", "536870912"),
        ("TIGHTFIT_SIZES", "power-of-two"),
        ("TIGHTFIT_TUNE", "cached"),
        ("TIGHTFIT_DEVICES", "0,1"),
        ("TIGHTFIT_EXACT_CLASS", "1"),
    ] {
        assert_eq!(seen(&output, name).as_deref(), Some(expected), "{name}");
    }
    for name in ["TIGHTFIT_TOTAL_WORKSPACE", "TIGHTFIT_REPORT"] {
        assert_eq!(seen(&output, name), None, "{name}");
    }
    let said = text(&output.stderr);
    assert_eq!(said.lines().count(), 1, "{said}");
    for part in ["512 MiB", "power-of-two", "cached", &ours] {
        assert!(said.contains(part), "{part}: {said}");
    }
}

#[test]
fn program_starts_even_if_standard_error_is_full_or_closed() {
    let place = Place::new(REAL);
    let cudnn = place.cudnn().display().to_string();
    for redirect in
        ["exec \"$@\" 2>/dev/full", "exec \"$@\" 2>&-", "exec 3>&1; { \"$@\" 2>&1 >&3; echo $? >&3; } | true"]
    {
        let tightfit = place.tightfit(&["run", "--cudnn", &cudnn, "--", "echo", "started"]);
        let mut shell = Command::new("sh");
        shell.args(["-c", redirect, "sh"]).arg(tightfit.get_program()).args(tightfit.get_args());
        for (name, value) in tightfit.get_envs() {
            match value {
                Some(value) => shell.env(name, value),
                None => shell.env_remove(name),
            };
        }
        let output = shell.output().unwrap();
        assert!(text(&output.stdout).starts_with("started\n"), "{redirect}: {}", text(&output.stdout));
        assert!(output.status.success(), "{redirect}");
    }
}

#[test]
fn defaults_are_printed_and_paths_are_absolute() {
    let place = Place::new(REAL);
    let output = place.run("", "env");
    assert_eq!(seen(&output, "TIGHTFIT_WORKSPACE").as_deref(), Some("67108864"));
    assert_eq!(seen(&output, "TIGHTFIT_SIZES").as_deref(), Some("fit"));
    assert_eq!(seen(&output, "TIGHTFIT_TUNE").as_deref(), Some("measure"));
    assert!(text(&output.stderr).contains("64 MiB of workspace per kernel"));
    let output = place.run("--total-workspace 1GiB --report out-%p.json --cache here.db", "env");
    assert_eq!(seen(&output, "TIGHTFIT_TOTAL_WORKSPACE").as_deref(), Some("1073741824"));
    assert_eq!(seen(&output, "TIGHTFIT_WORKSPACE"), None);
    let here = place.path("preload");
    assert_eq!(seen(&output, "TIGHTFIT_CACHE"), Some(here.join("here.db").display().to_string()));
    assert_eq!(seen(&output, "TIGHTFIT_REPORT"), Some(here.join("out-%p.json").display().to_string()));
    assert_eq!(seen(&place.run("--cache none", "env"), "TIGHTFIT_CACHE").as_deref(), Some("none"));
    assert_eq!(seen(&place.run("--workspace unlimited", "env"), "TIGHTFIT_WORKSPACE").as_deref(), Some("unlimited"));
}

#[test]
fn command_line_overrides_the_environment() {
    let place = Place::new(REAL);
    let cudnn = place.cudnn().display().to_string();
    let limits = |variables: &[(&str, &str)], options: &str| {
        let mut arguments: Vec<&str> = vec!["run", "--cudnn", &cudnn];
        arguments.extend(options.split_whitespace());
        arguments.extend(["--", "env"]);
        let output = place.tightfit(&arguments).envs(variables.iter().copied()).output().unwrap();
        let limit = |name| output.status.success().then(|| seen(&output, name)).flatten();
        (output.status.code(), limit("TIGHTFIT_WORKSPACE"), limit("TIGHTFIT_TOTAL_WORKSPACE"))
    };
    let (each, total) = (("TIGHTFIT_WORKSPACE", "1KiB"), ("TIGHTFIT_TOTAL_WORKSPACE", "2KiB"));
    let bytes = |size: &str| Some(size.to_owned());
    assert_eq!(limits(&[each], ""), (Some(0), bytes("1024"), None));
    assert_eq!(limits(&[total], ""), (Some(0), None, bytes("2048")));
    assert_eq!(limits(&[each], "--total-workspace 3KiB"), (Some(0), None, bytes("3072")));
    assert_eq!(limits(&[each, total], "--workspace 4KiB"), (Some(0), bytes("4096"), None));
    assert_eq!(limits(&[each, total], ""), (Some(2), None, None));
    assert_eq!(limits(&[("TIGHTFIT_WORKSPACE", "much")], ""), (Some(2), None, None));
}

#[test]
fn command_keeps_its_arguments_streams_exit_code_signals_and_pid() {
    let place = Place::new(REAL);
    let output = place.run("", "printf '%s|' \"$@\"; exit 7");
    assert_eq!(output.status.code(), Some(7));
    let cudnn = place.cudnn().display().to_string();
    let echo = ["run", "--cudnn", &cudnn, "--", "printf", "%s|", "a b", "", "--workspace", "*"];
    assert_eq!(text(&place.tightfit(&echo).output().unwrap().stdout), "a b||--workspace|*|");
    let output = place.run("", "kill -TERM $$");
    assert_eq!(output.status.signal(), Some(15));
    let child = place
        .tightfit(&["run", "--cudnn", &cudnn, "--", "sh", "-c", "echo $$"])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let id = child.id();
    assert_eq!(text(&child.wait_with_output().unwrap().stdout).trim(), id.to_string());
}

#[test]
fn inapplicable_options_are_refused_but_their_variables_are_ignored() {
    let place = Place::new(REAL);
    for (option, words) in [
        ("--types f16", "types"),
        ("--layout nhwc", "layout"),
        ("--threads 2", "threads"),
        ("--every-engine", "every-engine"),
        ("--backend cpu", "backend"),
        ("--format json", "--report"),
        ("--seed 7", "seed"),
    ] {
        let output = place.run(option, "echo started");
        let message = text(&output.stderr);
        assert_eq!((output.status.code(), text(&output.stdout).as_str()), (Some(2), ""), "{option}: {message}");
        let name = option.split(' ').next().unwrap();
        assert!(message.contains(name) && message.contains(words) && message.contains("leave it out"), "{message}");
    }
    // Before the command's name it is the same option.
    let cudnn = place.cudnn().display().to_string();
    let output = place.tightfit(&["--types", "f16", "run", "--cudnn", &cudnn, "--", "true"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{}", text(&output.stderr));
    assert_eq!(place.run("--backend cuda", "true").status.code(), Some(0));
    let mut command = place.tightfit(&["run", "--cudnn", &cudnn, "--", "true"]);
    for (name, value) in [
        ("TYPES", "bf16"),
        ("LAYOUT", "sideways"),
        ("THREADS", "many"),
        ("BACKEND", "cpu"),
        ("FORMAT", "xml"),
        ("SEED", "x"),
        ("DEVICES", "K80,K20Xm"),
    ] {
        command.env(format!("TIGHTFIT_{name}"), value);
    }
    let output = command.output().unwrap();
    let message = text(&output.stderr);
    assert_eq!((output.status.code(), message.lines().count()), (Some(0), 2), "{message}");
    assert!(message.contains("TIGHTFIT_DEVICES") && message.contains("K80,K20Xm"), "{message}");
    // Other commands still say what is wrong with them.
    let output = place.tightfit(&["networks"]).env("TIGHTFIT_SEED", "x").output().unwrap();
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn device_names_in_the_environment_are_not_passed_on() {
    let place = Place::new(REAL);
    let cudnn = place.cudnn().display().to_string();
    let seen_with = |devices: &str| {
        let mut command = place.tightfit(&["run", "--cudnn", &cudnn, "--", "env"]);
        seen(&command.env("TIGHTFIT_DEVICES", devices).output().unwrap(), "TIGHTFIT_DEVICES")
    };
    assert_eq!(seen_with("0,1").as_deref(), Some("0,1"));
    assert_eq!(seen_with("0, 1").as_deref(), Some("0, 1"), "as the library reads it");
    assert_eq!(seen_with("K80,K80"), None);
}

#[test]
fn deterministic_is_passed_on() {
    let place = Place::new(REAL);
    assert_eq!(seen(&place.run("--deterministic", "env"), "TIGHTFIT_DETERMINISTIC").as_deref(), Some("1"));
    assert_eq!(seen(&place.run("", "env"), "TIGHTFIT_DETERMINISTIC"), None);
}

#[test]
fn non_utf_8_limits_are_refused_and_non_utf_8_paths_passed_on() {
    let place = Place::new(REAL);
    let cudnn = place.cudnn().display().to_string();
    let bytes = OsStr::from_bytes(b"64\xffMiB");
    for name in ["TIGHTFIT_WORKSPACE", "TIGHTFIT_TOTAL_WORKSPACE"] {
        let output = place.tightfit(&["run", "--cudnn", &cudnn, "--", "true"]).env(name, bytes).output().unwrap();
        let message = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{message}");
        assert!(message.contains(name) && message.contains("not UTF-8"), "{message}");
    }
    let [cache, report] =
        [b"\xfe.db".as_slice(), b"\xfe-%p.json"].map(|name| place.path("").join(OsStr::from_bytes(name)));
    let mut command = place.tightfit(&["run", "--cudnn", &cudnn, "--", "sh", "-c", "env; echo number=$$"]);
    let output = command.env("TIGHTFIT_CACHE", &cache).env("TIGHTFIT_REPORT", &report).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let has = |name: &str, path: &Path| {
        let line = [name.as_bytes(), b"=", path.as_os_str().as_bytes(), b"\n"].concat();
        output.stdout.windows(line.len()).any(|part| part == line)
    };
    assert!(has("TIGHTFIT_CACHE", &cache) && has("TIGHTFIT_REPORT", &report));
    let words = String::from_utf8_lossy(&output.stdout);
    let number = words.lines().find_map(|line| line.strip_prefix("number=")).unwrap();
    let name = [b"\xfe-".as_slice(), number.as_bytes(), b".json"].concat();
    assert!(place.path("").join(OsStr::from_bytes(&name)).is_file(), "the report of no convolution");
}

#[test]
fn a_report_exists_before_the_command_runs() {
    let place = Place::new(REAL);
    let report = place.path("report.json");
    let options = format!("--total-workspace 1MiB --report {}", report.display());
    let output = place.run(&options, &format!("cat {}; echo; echo $$", report.display()));
    let words = text(&output.stdout);
    let (written, number) = words.trim().rsplit_once('\n').unwrap();
    for part in [
        "\"kernels\": []".to_owned(),
        "\"total_workspace_bytes\": 1048576".to_owned(),
        format!("\"pid\": {number}"),
        format!("\"cudnn\": \"{}\"", place.cudnn().display()),
    ] {
        assert!(written.contains(&part), "{part}: {written}");
    }
    // One that cannot be written is refused where it was asked for, and else said.
    let bad = place.path("nowhere/report.json").display().to_string();
    let output = place.run(&format!("--report {bad}"), "echo started");
    assert!(output.status.code() == Some(1) && output.stdout.is_empty(), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains(&bad));
    let cudnn = place.cudnn().display().to_string();
    let echo = ["run", "--cudnn", &cudnn, "--", "echo", "started"];
    let output = place.tightfit(&echo).env("TIGHTFIT_REPORT", &bad).output().unwrap();
    assert_eq!(text(&output.stdout), "started\n");
    assert!(text(&output.stderr).contains(&bad), "{}", text(&output.stderr));
    // A command that is not there leaves an earlier report alone, and what is no file is not waited for.
    fs::write(&report, "kept").unwrap();
    let path = report.display().to_string();
    let output = place.tightfit(&["run", "--cudnn", &cudnn, "--report", &path, "--", "no-such-program"]).output();
    assert_eq!(output.unwrap().status.code(), Some(1));
    assert_eq!(fs::read_to_string(&report).unwrap(), "kept");
    let fifo = place.path("fifo");
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    assert_eq!(text(&place.run(&format!("--report {}", fifo.display()), "echo started").stdout), "started\n");
}

#[test]
fn closed_standard_error_does_not_stop_the_command() {
    let place = Place::new(REAL);
    let cudnn = place.cudnn().display().to_string();
    let script = format!("exec '{}' run --cudnn '{cudnn}' -- echo started 2>&-", env!("CARGO_BIN_EXE_tightfit"));
    let mut command = Command::new("sh");
    command.args(["-c", &script]).env("TIGHTFIT_PRELOAD", place.path("preload"));
    let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    assert_eq!(text(&command.output().unwrap().stdout), "started\n");
    let output = place.tightfit(&["run", "--cudnn", &cudnn, "--", "echo", "started"]).stderr(full).output().unwrap();
    assert_eq!(text(&output.stdout), "started\n");
}

#[test]
fn other_preloaded_libraries_are_kept() {
    let place = Place::new(REAL);
    let other = place.path("other.so");
    place.compile("int nothing_at_all;", &other, &[]);
    let cudnn = place.cudnn().display().to_string();
    let output = place.tightfit(&["run", "--cudnn", &cudnn, "--", "env"]).env("LD_PRELOAD", &other).output().unwrap();
    let ours = place.path("preload/libtightfit_preload.so");
    assert_eq!(seen(&output, "LD_PRELOAD"), Some(format!("{}:{}", ours.display(), other.display())));
}

#[test]
fn cudnn_comes_from_the_commands_python() {
    let place = Place::new(REAL);
    place.executable("venv/bin/python3", "#!/bin/sh\nexec env\n");
    let python = place.python();
    let output = place.tightfit(&["run", "--", &python, "train.py"]).output().unwrap();
    assert_eq!(seen(&output, "TIGHTFIT_CUDNN"), Some(place.cudnn().display().to_string()));
    place.executable("venv/bin/torchrun", &format!("#!{python}\n"));
    let script = place.path("venv/bin/torchrun").display().to_string();
    let output = place.tightfit(&["run", "--", &script]).output().unwrap();
    assert_eq!(seen(&output, "TIGHTFIT_CUDNN"), Some(place.cudnn().display().to_string()));
    // A Python elsewhere says itself where its packages are.
    let answer = format!("#!/bin/sh\n[ \"$1\" = -c ] || exec env\necho '{}'\n", place.site().display());
    fs::create_dir(place.path("elsewhere")).unwrap();
    place.executable("elsewhere/python3", &answer);
    let python = place.path("elsewhere/python3").display().to_string();
    let output = place.tightfit(&["run", "--", &python, "train.py"]).output().unwrap();
    assert_eq!(seen(&output, "TIGHTFIT_CUDNN"), Some(place.cudnn().display().to_string()));
}

#[test]
fn newer_cudnn_gets_the_plain_library() {
    let place = Place::new(NEWER);
    let output = place.run("", "env");
    let plain = place.path("preload/libtightfit_preload_plain.so");
    assert_eq!(seen(&output, "LD_PRELOAD"), Some(plain.display().to_string()));
    assert!(text(&output.stderr).contains("cudnnNewThing"), "{}", text(&output.stderr));
    fs::remove_file(plain).unwrap();
    let output = place.run("", "env");
    let message = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{message}");
    assert!(message.contains("cudnnNewThing") && message.contains("libtightfit_preload_plain.so"), "{message}");
}

#[test]
fn missing_pieces_are_named_with_the_next_step() {
    let place = Place::new(REAL);
    let cudnn = place.cudnn().display().to_string();
    let ours = place.path("preload/libtightfit_preload.so").display().to_string();
    let empty = place.path("venv").display().to_string();
    for (arguments, preload, code, parts) in [
        (vec!["run", "--cudnn", &cudnn, "--", "no-such-program"], None, 1, ["no-such-program", "PATH"]),
        (vec!["run", "--cudnn", &cudnn, "--", "true"], Some(empty.as_str()), 1, ["cargo build", "TIGHTFIT_PRELOAD"]),
        (vec!["run", "--cudnn", "/nowhere", "--", "true"], None, 1, ["/nowhere", "--cudnn"]),
        (vec!["run", "--cudnn", "/etc/hostname", "--", "true"], None, 1, ["/etc/hostname", "not a shared library"]),
        (vec!["run", "--cudnn", &ours, "--", "true"], None, 1, ["tightfit's own", "--cudnn"]),
        (vec!["run"], None, 2, ["COMMAND", "--"]),
        (vec!["run", "--workspace", "1MiB", "true"], None, 2, ["true", "--"]),
        (vec!["run", "--workspace", "1Mi", "--", "true"], None, 2, ["1Mi", "64MiB"]),
        (vec!["run", "--workspace", "1MiB", "--total-workspace", "1MiB", "--", "true"], None, 2, ["cannot be", "used"]),
        (vec!["run", "--tune", "guess", "--", "true"], None, 2, ["guess", "heuristic"]),
        (vec!["run", "--devices", "first", "--", "true"], None, 2, ["first", "0,1"]),
    ] {
        let mut command = place.tightfit(&arguments);
        if let Some(preload) = preload {
            command.env("TIGHTFIT_PRELOAD", preload);
        }
        let output = command.output().unwrap();
        let message = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {message}");
        assert!(parts.iter().all(|part| message.contains(part)), "{arguments:?}: {message}");
        assert!(!message.contains("panicked"), "{message}");
    }
    // A library that does not carry cuDNN's name would stand in for nothing.
    place.compile(OURS, &place.path("preload/libtightfit_preload.so"), &[]);
    let message = text(&place.run("", "true").stderr);
    assert!(message.contains("rebuild it"), "{message}");
}

#[test]
fn switched_off_is_reported() {
    let place = Place::new(REAL);
    let cudnn = place.cudnn().display().to_string();
    let output = place.tightfit(&["run", "--cudnn", &cudnn, "--", "env"]).env("TIGHTFIT_OFF", "1").output().unwrap();
    assert_eq!(seen(&output, "TIGHTFIT_OFF").as_deref(), Some("1"));
    assert!(text(&output.stderr).contains("switched off"));
}

/// Puts a torch into the environment whose CUDA library is linked with `options`.
fn install_torch(place: &Place, options: &[&str]) {
    let torch = place.site().join("torch");
    fs::create_dir_all(torch.join("lib")).unwrap();
    fs::write(torch.join("version.py"), "debug = False\n__version__ = '2.11.0+cu130'\n").unwrap();
    fs::create_dir_all(place.site().join("nvidia_cudnn_cu13-9.19.0.56.dist-info")).unwrap();
    place.compile(
        "int cudnnCreate(void); int use(void) { return cudnnCreate(); }",
        &torch.join("lib/libtorch_cuda.so"),
        options,
    );
}

fn doctor(place: &Place) -> (i32, String, String) {
    let python = place.python();
    let output = place.tightfit(&["doctor", "--preload", "--python", &python, "--format", "csv"]).output().unwrap();
    (output.status.code().unwrap(), text(&output.stdout), text(&output.stderr))
}

#[test]
fn doctor_checks_a_python_environment_from_its_files() {
    let place = Place::new(REAL);
    let cudnn = place.cudnn().display().to_string();
    let (code, table, message) = doctor(&place);
    assert_eq!(code, 1, "{table}");
    assert!(message.contains("torch: not installed") && table.contains("will not work"), "{table}{message}");

    install_torch(&place, &[&cudnn, "-Wl,--disable-new-dtags,-rpath,$ORIGIN/../../nvidia/cudnn/lib"]);
    let (code, table, message) = doctor(&place);
    assert_eq!(code, 0, "{table}{message}");
    for part in
        ["2.11.0+cu130", "DT_RPATH", "9.19.0.56", "all of this cuDNN's functions are known", "will intercept", "3.12.1"]
    {
        assert!(table.contains(part), "{part}: {table}");
    }

    install_torch(&place, &[]);
    let (code, table, message) = doctor(&place);
    assert_eq!(code, 1, "{table}");
    assert!(table.contains("does not link cuDNN") && message.contains("will not work"), "{table}{message}");
}

#[test]
fn doctor_knows_which_packages_a_newer_cudnn_still_allows() {
    let place = Place::new(NEWER);
    fs::create_dir(place.site().join("jax_cuda13_plugin-0.10.2.dist-info")).unwrap();
    let (code, table, _) = doctor(&place);
    assert_eq!(code, 1, "JAX opens cuDNN by name: {table}");
    assert!(table.contains("1 unknown (cudnnNewThing"), "{table}");
    install_torch(&place, &[&place.cudnn().display().to_string()]);
    assert_eq!(doctor(&place).0, 0, "PyTorch links it");
    fs::remove_file(place.cudnn()).unwrap();
    let (code, table, _) = doctor(&place);
    assert!(code == 1 && table.contains("pip install nvidia-cudnn-cu13"), "{table}");
}

#[test]
fn doctor_needs_a_working_python() {
    let place = Place::new(REAL);
    let output = place.tightfit(&["doctor", "--preload", "--python", "/no/python"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stdout).contains("--python"));
    assert_eq!(place.tightfit(&["doctor", "--python", "python3"]).output().unwrap().status.code(), Some(2));
}
