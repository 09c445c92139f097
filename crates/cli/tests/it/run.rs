//! `tightfit run`: the environment of the command, what it passes through, the form of the library, and the message when
//! something is missing.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::folder::text;
use crate::virtual_env::{NEWER, OURS, REAL, VirtualEnv, seen};

#[test]
fn settings_reach_the_command_as_environment_variables() {
    let place = VirtualEnv::new(REAL);
    let options = "--workspace 512MiB --sizes power-of-two --tune cached --devices 0,1 --exact-class --deterministic";
    let output = place.run(options, "env");
    let ours = place.path("preload/libtightfit_preload.so").display().to_string();
    for (name, expected) in [
        ("LD_PRELOAD", ours.as_str()),
        ("TIGHTFIT_CUDNN", &place.cudnn().display().to_string()),
        ("TIGHTFIT_WORKSPACE", "536870912B"),
        ("TIGHTFIT_SIZES", "power-of-two"),
        ("TIGHTFIT_TUNE", "cached"),
        ("TIGHTFIT_DEVICES", "0,1"),
        ("TIGHTFIT_EXACT_CLASS", "1"),
        ("TIGHTFIT_DETERMINISTIC", "1"),
    ] {
        assert_eq!(seen(&output, name).as_deref(), Some(expected), "{name}");
    }
    for name in ["TIGHTFIT_TOTAL_WORKSPACE", "TIGHTFIT_REPORT"] {
        assert_eq!(seen(&output, name), None, "{name}");
    }
    let said = text(&output.stderr);
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(!said.contains(&ours), "{said}");
    let said = text(&place.run("-v --workspace 512MiB --sizes power-of-two --tune cached", "env").stderr);
    for part in ["512 MiB", "power-of-two", "cached", &ours] {
        assert!(said.contains(part), "{part}: {said}");
    }
}

#[test]
fn program_starts_even_if_standard_error_is_full_or_closed() {
    let place = VirtualEnv::new(REAL);
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
    let place = VirtualEnv::new(REAL);
    let output = place.run("", "env");
    assert_eq!(seen(&output, "TIGHTFIT_WORKSPACE").as_deref(), Some("auto"));
    assert_eq!(seen(&output, "TIGHTFIT_SIZES").as_deref(), Some("fit"));
    assert_eq!(seen(&output, "TIGHTFIT_TUNE").as_deref(), Some("measure"));
    assert_eq!(seen(&output, "TIGHTFIT_TUNE_BUDGET").as_deref(), Some("10s"));
    for name in ["TIGHTFIT_QUIET", "TIGHTFIT_DETERMINISTIC"] {
        assert_eq!(seen(&output, name), None, "{name}");
    }
    let said = text(&place.run("-v", "env").stderr);
    assert!(said.contains("the workspace of the program's own choices") && said.contains("within 10s"), "{said}");
    assert!(text(&place.run("--quiet", "env").stderr).is_empty());
    let said = text(&place.run("-v --workspace 64MiB", "env").stderr);
    assert!(said.contains("64 MiB of workspace per kernel"), "{said}");
    let output = place.run("--total-workspace 1GiB --report out-%p.json --cache here.db", "env");
    assert_eq!(seen(&output, "TIGHTFIT_TOTAL_WORKSPACE").as_deref(), Some("1073741824B"));
    assert_eq!(seen(&output, "TIGHTFIT_WORKSPACE"), None);
    let here = place.path("preload");
    assert_eq!(seen(&output, "TIGHTFIT_CACHE"), Some(here.join("here.db").display().to_string()));
    assert_eq!(seen(&output, "TIGHTFIT_REPORT"), Some(here.join("out-%p.json").display().to_string()));
    assert_eq!(seen(&place.run("--cache none", "env"), "TIGHTFIT_CACHE").as_deref(), Some("none"));
    assert_eq!(seen(&place.run("--workspace unlimited", "env"), "TIGHTFIT_WORKSPACE").as_deref(), Some("unlimited"));
}

#[test]
fn tuning_is_told_how_long_and_how_loud() {
    let place = VirtualEnv::new(REAL);
    for (budget, passed, words) in [
        ("30s", "30s", "within 30s"),
        ("2m", "120s", "within 120s"),
        ("0", "0s", "within 0s"),
        ("unlimited", "unlimited", "without limit"),
    ] {
        for tune in ["measure", "first"] {
            let output = place.run(&format!("-v --tune {tune} --tune-budget {budget}"), "env");
            assert_eq!(seen(&output, "TIGHTFIT_TUNE").as_deref(), Some(tune));
            assert_eq!(seen(&output, "TIGHTFIT_TUNE_BUDGET").as_deref(), Some(passed), "{budget}");
            let said = text(&output.stderr);
            assert!(said.contains(&format!("tune {tune} {words}")), "{said}");
        }
    }
    assert!(!text(&place.run("-v --tune cached", "env").stderr).contains("within"), "nothing is measured");
    let said = |gpu: bool, options: &str| {
        let mut command = place.tightfit(&["run", "--cudnn", &place.cudnn().display().to_string()]);
        command.args(options.split_whitespace()).args(["--", "env"]);
        if gpu {
            command.env("TIGHTFIT_CUDA", "libcuda.so.1");
        }
        text(&command.output().unwrap().stderr)
    };
    let line = said(true, "--tune-budget 30s --workspace 64MiB");
    assert_eq!(line, "tightfit: tuning convolutions for up to 30s, in 64 MiB of workspace per kernel (-v for paths)\n");
    if !std::path::Path::new("/dev/nvidiactl").exists() {
        assert!(said(false, "").starts_with("tightfit: no GPU here, "), "{}", said(false, ""));
    }
    let cudnn = place.cudnn().display().to_string();
    let run = |budget: &str| {
        let mut command = place.tightfit(&["run", "--cudnn", &cudnn, "--", "env"]);
        command.env("TIGHTFIT_TUNE_BUDGET", budget).output().unwrap()
    };
    assert_eq!(seen(&run("1m"), "TIGHTFIT_TUNE_BUDGET").as_deref(), Some("60s"));
    let wrong = run("soon");
    let message = text(&wrong.stderr);
    assert_eq!(wrong.status.code(), Some(2), "{message}");
    assert!(message.contains("soon") && message.contains("unlimited"), "{message}");
    let quiet = place.run("--quiet", "env");
    assert_eq!((seen(&quiet, "TIGHTFIT_QUIET").as_deref(), text(&quiet.stderr).as_str()), (Some("1"), ""));
}

#[test]
fn the_store_behind_the_cache_is_named_or_none() {
    let place = VirtualEnv::new(REAL);
    let output = place.run("", "env");
    assert_eq!(seen(&output, "TIGHTFIT_SHIPPED"), None);
    assert!(!text(&output.stderr).contains("shipped"));
    let file = place.path("preload").join("h200.jsonl.gz").display().to_string();
    for (given, passed) in [("none", "none"), ("h200.jsonl.gz", file.as_str())] {
        let output = place.run(&format!("-v --shipped {given}"), "env");
        assert_eq!(seen(&output, "TIGHTFIT_SHIPPED").as_deref(), Some(passed));
        assert!(text(&output.stderr).contains(&format!(", shipped {given};")), "{}", text(&output.stderr));
    }
    // The command may change folders, so a variable becomes absolute too.
    let cudnn = place.cudnn().display().to_string();
    let mut command = place.tightfit(&["run", "--cudnn", &cudnn, "--", "env"]);
    let output = command.env("TIGHTFIT_SHIPPED", "h200.jsonl.gz").output().unwrap();
    let seen = seen(&output, "TIGHTFIT_SHIPPED").unwrap();
    assert!(seen.starts_with('/') && seen.ends_with("/h200.jsonl.gz"), "{seen}");
}

#[test]
fn a_budget_reaches_the_python_that_the_command_starts() {
    let place = VirtualEnv::new(REAL);
    let (cudnn, packages) = (place.cudnn().display().to_string(), place.path("packages"));
    let python = place.path("python3");
    let asked = "case \"$1$2\" in -c*tightfit_start*) echo True;; -c*) printf '%s\\n' \"$0\" 3.12.0 ";
    fs::write(&python, format!("#!/bin/sh\n{asked}{};; *) env;; esac\n", packages.display())).unwrap();
    fs::set_permissions(&python, fs::Permissions::from_mode(0o755)).unwrap();
    let python = python.display().to_string();
    let run = |options: &[&str], variables: &[(&str, &str)]| {
        let arguments = [&["run", "--cudnn", &cudnn], options, &["--", &python, "train.py"]].concat();
        place.tightfit(&arguments).envs(variables.iter().copied()).output().unwrap()
    };
    let missing = run(&["--budget", "8GiB"], &[]);
    assert_eq!(missing.status.code(), Some(1));
    assert!(text(&missing.stderr).contains("-m pip install tightfit"), "{}", text(&missing.stderr));
    let site = packages.join("tightfit/_budget/site");
    fs::create_dir_all(&site).unwrap();
    fs::write(site.join("sitecustomize.py"), "").unwrap();
    let site = site.display().to_string();
    let given = run(&["--budget", "8GiB"], &[("PYTHONPATH", "/elsewhere")]);
    assert_eq!(seen(&given, "TIGHTFIT_BUDGET").as_deref(), Some("8589934592B"));
    assert_eq!(seen(&given, "PYTHONPATH"), Some(format!("{site}:/elsewhere")));
    // Convolutions are limited at the same time, by their own choices or as the options say.
    assert_eq!(seen(&given, "TIGHTFIT_WORKSPACE").as_deref(), Some("auto"));
    let limited = run(&["--budget", "8GiB", "--workspace", "64MiB"], &[]);
    assert_eq!(seen(&limited, "TIGHTFIT_WORKSPACE").as_deref(), Some("67108864B"));
    // Nothing is measured or exchanged, unless the options ask for decisions of the cache.
    assert_eq!(seen(&given, "TIGHTFIT_TUNE").as_deref(), Some("heuristic"));
    let cached = run(&["--budget", "8GiB", "--tune", "cached"], &[]);
    assert_eq!(seen(&cached, "TIGHTFIT_TUNE").as_deref(), Some("cached"));
    assert_eq!(seen(&run(&[], &[]), "TIGHTFIT_TUNE").as_deref(), Some("measure"));
    let guessed = run(&["--budget", "8GiB", "--tune", "heuristic"], &[]);
    assert_eq!(seen(&guessed, "TIGHTFIT_TUNE").as_deref(), Some("heuristic"));
    for (options, variables) in [
        (&["--budget", "8GiB", "--tune", "measure"][..], &[][..]),
        (&["--budget", "8GiB"][..], &[("TIGHTFIT_TUNE", "first")][..]),
    ] {
        let refused = run(options, variables);
        assert_eq!(refused.status.code(), Some(2));
        assert!(text(&refused.stderr).contains("memory outside the budget"), "{}", text(&refused.stderr));
    }
    let auto = run(&[], &[("TIGHTFIT_BUDGET", "auto")]);
    assert_eq!(seen(&auto, "TIGHTFIT_BUDGET").as_deref(), Some("auto"));
    assert_eq!(seen(&run(&[], &[]), "PYTHONPATH"), None);
    let mut other = place.tightfit(&["run", "--budget", "8GiB", "--", "/bin/sh", "-c", "echo started"]);
    let other = other.env("PATH", &packages).output().unwrap();
    assert_eq!((other.status.code(), &other.stdout[..]), (Some(1), &b""[..]));
    assert!(text(&other.stderr).contains("/bin/sh names no Python"), "{}", text(&other.stderr));
    // A budget needs no cuDNN, unless its workspaces are to be limited.
    let missing = place.path("missing").display().to_string();
    let without = |options: &[&str]| {
        let budget: &[&str] = if options.contains(&"--budget") { &[] } else { &["--budget", "8GiB"] };
        let arguments = [&["run"], budget, options, &["--", &python, "train.py"]].concat();
        place.tightfit(&arguments).env("TIGHTFIT_PRELOAD", &missing).output().unwrap()
    };
    assert_eq!(seen(&without(&[]), "TIGHTFIT_BUDGET").as_deref(), Some("8589934592B"));
    assert_eq!(seen(&without(&[]), "LD_PRELOAD"), None);
    for options in [&["--workspace", "64MiB"][..], &["--cudnn", &cudnn]] {
        assert_eq!(without(options).status.code(), Some(1), "{options:?}");
    }
    // The package writes the budget's report.
    let reported = without(&["--report", "run-%p.json"]);
    let report = place.path("preload").join("run-%p.json").display().to_string();
    assert_eq!(seen(&reported, "TIGHTFIT_BUDGET_REPORT"), Some(report));
    assert_eq!(seen(&reported, "TIGHTFIT_REPORT"), None);
    for (given, passed) in [("60%", "60%"), ("62.5 %", "62.5%")] {
        assert_eq!(seen(&without(&["--budget", given]), "TIGHTFIT_BUDGET").as_deref(), Some(passed));
    }
    // The package, not the command, prints the lines about the budget.
    assert_eq!(text(&given.stderr), "");
    assert_eq!(seen(&run(&["--budget", "8GiB", "-v"], &[]), "TIGHTFIT_VERBOSE").as_deref(), Some("1"));
}

#[test]
fn command_line_overrides_the_environment() {
    let place = VirtualEnv::new(REAL);
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
    assert_eq!(limits(&[each], ""), (Some(0), bytes("1024B"), None));
    assert_eq!(limits(&[total], ""), (Some(0), None, bytes("2048B")));
    assert_eq!(limits(&[each], "--total-workspace 3KiB"), (Some(0), None, bytes("3072B")));
    assert_eq!(limits(&[each, total], "--workspace 4KiB"), (Some(0), bytes("4096B"), None));
    let auto = || Some("auto".to_owned());
    assert_eq!(limits(&[("TIGHTFIT_WORKSPACE", "auto")], ""), (Some(0), auto(), None));
    assert_eq!(limits(&[each], "--workspace auto"), (Some(0), auto(), None));
    assert_eq!(limits(&[], "--total-workspace auto"), (Some(2), None, None));
    assert_eq!(limits(&[each, total], ""), (Some(2), None, None));
    assert_eq!(limits(&[("TIGHTFIT_WORKSPACE", "much")], ""), (Some(2), None, None));
}

#[test]
fn command_keeps_its_arguments_streams_exit_code_signals_and_pid() {
    let place = VirtualEnv::new(REAL);
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
    let place = VirtualEnv::new(REAL);
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
    // Other commands still report their own errors.
    let output = place.tightfit(&["verify", "lenet"]).env("TIGHTFIT_SEED", "x").output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("--seed"), "{}", text(&output.stderr));
}

#[test]
fn device_names_in_the_environment_are_not_passed_on() {
    let place = VirtualEnv::new(REAL);
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
fn non_utf_8_limits_are_refused_and_non_utf_8_paths_passed_on() {
    let place = VirtualEnv::new(REAL);
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
    let place = VirtualEnv::new(REAL);
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
    // A missing command leaves an earlier report alone, and the command does not wait for a report that is not a file.
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
fn other_preloaded_libraries_are_kept() {
    let place = VirtualEnv::new(REAL);
    let other = place.path("other.so");
    place.compile("int nothing_at_all;", &other, &[]);
    let cudnn = place.cudnn().display().to_string();
    let output = place.tightfit(&["run", "--cudnn", &cudnn, "--", "env"]).env("LD_PRELOAD", &other).output().unwrap();
    let ours = place.path("preload/libtightfit_preload.so");
    assert_eq!(seen(&output, "LD_PRELOAD"), Some(format!("{}:{}", ours.display(), other.display())));
}

#[test]
fn cudnn_comes_from_the_commands_python() {
    let place = VirtualEnv::new(REAL);
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
    let place = VirtualEnv::new(NEWER);
    let output = place.run("-v", "env");
    let plain = place.path("preload/libtightfit_preload_plain.so");
    assert_eq!(seen(&output, "LD_PRELOAD"), Some(plain.display().to_string()));
    assert!(text(&output.stderr).contains("cudnnNewThing"), "{}", text(&output.stderr));
    fs::remove_file(plain).unwrap();
    let output = place.run("", "env");
    let message = text(&output.stderr);
    if cfg!(debug_assertions) {
        assert_eq!(output.status.code(), Some(1), "{message}");
        assert!(message.contains("cudnnNewThing") && message.contains("libtightfit_preload_plain.so"), "{message}");
    } else {
        let library = seen(&output, "LD_PRELOAD").unwrap();
        assert!(library.contains("libtightfit_preload_plain-"), "an optimized build carries it: {library}");
    }
}

#[test]
fn missing_pieces_are_named_with_the_next_step() {
    let place = VirtualEnv::new(REAL);
    let cudnn = place.cudnn().display().to_string();
    let ours = place.path("preload/libtightfit_preload.so").display().to_string();
    let missing = place.path("missing").display().to_string();
    for (arguments, preload, code, parts) in [
        (vec!["run", "--cudnn", &cudnn, "--", "no-such-program"], None, 1, ["no-such-program", "PATH"]),
        (vec!["run", "--cudnn", &cudnn, "--", "true"], Some(missing.as_str()), 1, [&missing, "TIGHTFIT_PRELOAD"]),
        (vec!["run", "--cudnn", "/nowhere", "--", "true"], None, 1, ["/nowhere", "--cudnn"]),
        (vec!["run", "--cudnn", "/etc/hostname", "--", "true"], None, 1, ["/etc/hostname", "not a shared library"]),
        (vec!["run", "--cudnn", &ours, "--", "true"], None, 1, ["tightfit's own", "--cudnn"]),
        (vec!["run"], None, 2, ["COMMAND", "--"]),
        (vec!["run", "--cudnn", &cudnn, "no-such-program", "--x"], None, 1, ["no-such-program", "PATH"]),
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
    let place = VirtualEnv::new(REAL);
    let cudnn = place.cudnn().display().to_string();
    let output = place.tightfit(&["run", "--cudnn", &cudnn, "--", "env"]).env("TIGHTFIT_OFF", "1").output().unwrap();
    assert_eq!(seen(&output, "TIGHTFIT_OFF").as_deref(), Some("1"));
    assert!(text(&output.stderr).contains("switched off"));
}
