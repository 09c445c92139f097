//! The words of the command line: which one counts, and the messages about wrong and impossible ones.

use std::fs;

use crate::folder::{Folder, RECORDED, TIGHTFIT, clean, json, text};

#[test]
fn command_line_overrides_the_environment() {
    let folder = Folder::new();
    let replay =
        format!("--backend replay:{RECORDED} --format json --batch 256 --operations forward --sizes undivided");
    let limits = |variables: &[(&str, &str)], arguments: &str| {
        let mut command = folder.tightfit(&format!("optimize alexnet-1col {arguments} {replay}"));
        let output = command.envs(variables.iter().copied()).output().unwrap();
        let keys = ["workspace_limit_bytes", "total_workspace_bytes", "one_workspace_bytes"];
        let found = output.status.success().then(|| json(&text(&output.stdout)));
        (output.status.code(), keys.map(|key| found.as_ref().and_then(|found| found.get(key)?.as_u64())))
    };
    let workspace = ("TIGHTFIT_WORKSPACE", "1GiB");
    let total = ("TIGHTFIT_TOTAL_WORKSPACE", "2GiB");
    const GIB: u64 = 1 << 30;
    assert_eq!(limits(&[workspace], ""), (Some(0), [Some(GIB), None, None]));
    assert_eq!(limits(&[workspace], "--total-workspace 3GiB"), (Some(0), [None, Some(3 * GIB), None]));
    assert_eq!(limits(&[total], "--one-workspace 1GiB"), (Some(0), [None, None, Some(GIB)]));
    assert_eq!(limits(&[workspace, total], ""), (Some(2), [None; 3]));
    assert_eq!(limits(&[("TIGHTFIT_WORKSPACE", "much")], ""), (Some(2), [None; 3]));
    assert_eq!(limits(&[("TIGHTFIT_WORKSPACE", "much")], "--workspace 1GiB"), (Some(0), [Some(GIB), None, None]));
}

#[test]
fn unknown_words_are_listed_with_valid_ones() {
    let folder = Folder::new();
    for (arguments, parts) in [
        ("optimize alexnett --batch 4 --workspace 1MiB", &["alexnett", "alexnet"][..]),
        ("optimize lenet --batch 4 --workspace 1Mi", &["1Mi", "64MiB"]),
        ("optimize lenet --batch 4", &["--workspace", "--total-workspace"]),
        ("optimize lenet --batch 4 --workspace 1MiB --total-workspace 1MiB", &["cannot be used with"]),
        ("optimize lenet --batch 4 --workspace 1MiB --sizes best", &["best", "power-of-two"]),
        ("optimize lenet --batch 4 --workspace 1MiB --layers conv9", &["conv9", "conv1"]),
        ("optimize lenet --batch 4 --workspace 1MiB --types f64", &["f64", "tf32"]),
        ("optimize lenet --batch 4 --workspace 1MiB --backend abacus", &["abacus", "cpu"]),
        ("optimize lenet --batch 0 --workspace 1MiB", &["'0'", "--batch", "a whole number from 1 to 1048576"]),
        ("optimize lenet --batch -1 --workspace 1MiB", &["'-1'", "--batch", "a whole number from 1 to 1048576"]),
        ("optimize lenet --batch x --workspace 1MiB", &["'x'", "--batch", "a whole number from 1 to 1048576"]),
        ("optimize lenet --batch 4 --workspace -1", &["-1", "--workspace", "is not a size"]),
        ("optimize lenet --batch 4 --workspace -1MiB", &["'-1MiB'", "--workspace", "write 0 bytes or more"]),
        ("profile lenet --batch 4 --workspace -1MiB,1MiB", &["'-1MiB'", "--workspace", "write 0 bytes or more"]),
        ("optimize lenet -b -4 --workspace 1MiB", &["'-4'", "--batch", "a whole number from 1 to 1048576"]),
        ("plan lenet --batch 4 --assume --plan-time -1s", &["-1s", "--plan-time", "write 0 or more seconds"]),
        ("plan lenet --batch 4 --assume --sweep -5..100", &["'-5..100'", "--sweep", "percentages from 1 to 1000"]),
        ("run --tune-budget -5s -- true", &["'-5s'", "--tune-budget", "is not a time"]),
        ("verify lenet --batch 4 --workspace 1MiB --beta -inf", &["'-inf'", "--beta", "a finite number"]),
        ("--seed -1 verify lenet --batch 4 --workspace 1MiB", &["'-1'", "--seed", "a whole number from 0"]),
        ("optimize lenet --workspace 1MiB", &["lenet", "mini-batch", "--batch"]),
        ("verify lenet --batch 4 --workspace 1MiB --alpha nan", &["'nan'", "--alpha", "a finite number"]),
        ("verify lenet --batch 4 --workspace 1MiB --beta inf", &["'inf'", "--beta", "a finite number"]),
        ("optimize lenet --batch 4 --workspace 1MiB --backend replay:", &["--backend replay:", "replay:FILE"]),
        ("man nosuch", &["there is no subcommand `nosuch`", "profile"]),
        ("split --batch 32 --network resnet18", &["--devices"]),
        ("optimize lenet --batch 99999999999999 --workspace 1MiB", &["99999999999999", "1048576"]),
        ("optimize lenet --batch 4 --workspace 1MiB --threads 100000", &["100000", "1024"]),
        ("divide lenet", &["divide"]),
        ("optimize lenet --batch 4 --budget 1GiB", &["unexpected argument '--budget'"]),
    ] {
        let message = folder.fail(arguments, 2);
        for part in parts {
            assert!(message.contains(part), "{arguments}: {message}");
        }
        assert!(!message.contains("as a value"), "{arguments}: {message}");
    }
    assert!(!folder.path().join("cache.db").exists(), "nothing was measured");
}

#[test]
fn a_wrong_variable_is_named_and_an_empty_one_is_none() {
    let folder = Folder::new();
    let run = |variable: (&str, &str), arguments: &str| {
        let output = folder.tightfit(arguments).env(variable.0, variable.1).output().unwrap();
        (output.status.code(), text(&output.stderr))
    };
    let (plan, optimize) = ("plan lenet --batch 4 --assume", "optimize lenet --batch 4 --backend cpu");
    for (variable, arguments) in [
        ("TIGHTFIT_BATCH", "plan lenet --assume"),
        ("TIGHTFIT_THREADS", plan),
        ("TIGHTFIT_FORMAT", plan),
        ("TIGHTFIT_BUDGET", plan),
        ("TIGHTFIT_SEED", "test lenet --data digits --batch 4"),
        ("TIGHTFIT_WORKSPACE", optimize),
        ("TIGHTFIT_ONE_WORKSPACE", optimize),
        ("TIGHTFIT_WORKSPACE", "split --network resnet18 --batch 4 --devices K80"),
    ] {
        let (code, message) = run((variable, "zz"), arguments);
        assert!(code == Some(2) && message.contains(variable) && message.contains("zz"), "{variable}: {message}");
        let (code, message) = run((variable, ""), &format!("{plan} --budget 8MiB"));
        assert_eq!(code, Some(0), "{variable}: {message}");
    }
    for variable in ["TIGHTFIT_CACHE", "TIGHTFIT_BACKEND", "TIGHTFIT_TYPES", "TIGHTFIT_LAYOUT", "TIGHTFIT_DIVIDE"] {
        let (code, message) = run((variable, ""), plan);
        assert_eq!(code, Some(0), "{variable}: {message}");
    }
    // The command line counts, and an error there does not name the variable.
    assert_eq!(run(("TIGHTFIT_BATCH", "zz"), plan).0, Some(0));
    let (code, message) = run(("TIGHTFIT_BATCH", "zz"), "plan lenet --batch yy --assume");
    assert!(code == Some(2) && message.contains("'yy'") && !message.contains("TIGHTFIT_BATCH"), "{message}");
}

#[test]
fn a_cache_that_cannot_be_created_is_named_with_the_options_that_help() {
    let folder = Folder::on_cpu();
    fs::write(folder.path().join("file"), "").unwrap();
    for command in ["optimize lenet --batch 2 --workspace 1MiB", "train digits-net --batch 32 --data digits --steps 1"]
    {
        let output = folder.tightfit(command).env("TIGHTFIT_CACHE", "file/cache.db").output().unwrap();
        let message = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{command}: {message}");
        for part in ["file/cache.db", "--cache FILE", "--cache none"] {
            assert!(message.contains(part), "{command}: {message}");
        }
    }
}

#[test]
fn old_names_of_sizes_still_work_with_a_warning() {
    let folder = Folder::new();
    let common =
        format!("optimize alexnet-1col --batch 256 --workspace 64MiB --backend replay:{RECORDED} --format json");
    let with = |option: &str, variables: &[(&str, &str)]| {
        let mut command = folder.tightfit(&format!("{common} {option}"));
        let output = command.envs(variables.iter().copied()).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        (text(&output.stdout), text(&output.stderr))
    };
    let (undivided, quiet) = with("--sizes undivided", &[]);
    assert!(!quiet.contains("is now called"), "{quiet}");
    for (option, variables, warning) in [
        ("--policy undivided", &[][..], "--policy is now called --sizes"),
        ("", &[("TIGHTFIT_POLICY", "undivided")], "TIGHTFIT_POLICY is now called TIGHTFIT_SIZES"),
        ("", &[("TIGHTFIT_SIZES", "undivided"), ("TIGHTFIT_POLICY", "all")], ""),
        ("--sizes undivided", &[("TIGHTFIT_SIZES", "all")], ""),
    ] {
        let (found, said) = with(option, variables);
        assert_eq!(found, undivided, "{option} {variables:?}");
        assert!(said.contains(warning) && (!warning.is_empty() || !said.contains("is now called")), "{said}");
    }
    let both = folder.fail(&format!("{common} --sizes all --policy all"), 2);
    assert!(both.contains("cannot be used with"), "{both}");
}

#[test]
fn impossible_requests_explain_why() {
    let folder = Folder::new();
    for (arguments, parts) in [
        ("optimize missing.txt --batch 4 --workspace 1MiB", &["missing.txt"][..]),
        ("optimize lenet --batch 4 --workspace 1MiB --backend replay:missing.gz", &["missing.gz"]),
        (
            "optimize lenet --batch 4 --workspace 1MiB --backend replay:.",
            &[".: is a folder", "name a profile file in it"],
        ),
        ("optimize lenet --batch 2 --workspace 1MiB --plot no/such/folder.svg", &["folder.svg"]),
    ] {
        let message = folder.fail(arguments, 1);
        for part in parts {
            assert!(message.contains(part), "{arguments}: {message}");
        }
    }
    let verify = format!("verify alexnet-1col --batch 256 --workspace 64MiB --backend replay:{RECORDED}");
    assert!(folder.fail(&verify, 1).contains("cannot run anything"));
}

#[test]
fn too_small_a_limit_exits_with_3_and_names_the_smallest_that_works() {
    let folder = Folder::new();
    let list = folder.path().join("wide.txt");
    fs::write(&list, "only c64 h27 w27 k192 r5 s5 pad2\n").unwrap();
    let profile = folder.path().join("fft.jsonl");
    fs::write(
        &profile,
        r#"{"format":"tightfit-profile","version":1}
{"device":{"backend":"cuda","name":"X","library":"1","threads":0}}
{"problem":"forward c64 h27 w27 k192 r5 s5 pad2 f32","algorithm":"fft","notes":8,"rows":[[1,1000,1000,0.0,3,null],[2,1500,2000,0.0,3,null],[4,2500,4000,0.0,3,null]]}
"#,
    )
    .unwrap();
    let common = format!("{} --batch 4 --operations forward --backend replay:{}", list.display(), profile.display());
    for (bound, least) in
        [("--workspace 999", "1000 B"), ("--total-workspace 999", "1000 B"), ("--one-workspace 999", "1000 B")]
    {
        let message = folder.fail(&format!("optimize {common} {bound}"), 3);
        assert!(message.contains(&format!("at least {least}")), "{bound}: {message}");
    }
    let undivided = folder.fail(&format!("optimize {common} --workspace 1000 --sizes undivided"), 3);
    assert!(undivided.contains("at least 4.0 KiB"), "{undivided}");
    let fits = folder.json(&format!("optimize {common} --workspace 1000"));
    assert_eq!(fits["kernels"][0]["configuration"].as_array().unwrap().len(), 4);
    assert_eq!(fits["undivided_time_us"], serde_json::Value::Null);
    assert_eq!(fits["kernels"][0]["undivided_missing"], "over-limit");
    // Nothing was recorded at 3 samples, whatever would fit there.
    let three = common.replace("--batch 4", "--batch 3");
    let unknown = folder.json(&format!("optimize {three} --workspace 2000"));
    assert_eq!(unknown["kernels"][0]["undivided_missing"], "not-measured");
    let table = folder.succeed(&format!("optimize {three} --workspace 2000"));
    let said = "undivided   not measured at 3 samples: only forward;";
    assert!(table.contains(said) && !table.contains("does not fit"), "{table}");
}

#[test]
fn unsupported_types_of_a_backend_are_explained() {
    let folder = Folder::new();
    for command in ["optimize", "verify", "profile"] {
        let message = folder.fail(&format!("{command} lenet --batch 4 --workspace 1MiB --types f16 --backend cpu"), 2);
        assert!(message.starts_with("error: --types f16: the CPU backend supports only f32;"), "{message}");
    }
    assert_eq!(folder.measurements(), 0);
}

#[test]
fn examples_of_the_help_are_accepted() {
    let folder = Folder::new();
    let all = "networks doctor profile optimize verify plan train test predict split run report cache completions man";
    let mut examples = 0;
    for command in all.split(' ') {
        let help = folder.succeed(&format!("{command} --help"));
        let shown = help.split("Examples:").nth(1).unwrap_or_else(|| panic!("{command} --help has no examples"));
        for line in shown.lines().filter_map(|line| line.strip_prefix("  tightfit ")) {
            assert!(line.starts_with(command), "{line}");
            let options = line.split(" -- ").next().unwrap().split(['|', '>']).next().unwrap();
            folder.succeed(&format!("{options} --help"));
            examples += 1;
        }
        let wide: Vec<&str> = shown.lines().filter(|line| line.chars().count() > 80).collect();
        assert!(wide.is_empty(), "{command}: lines that wrap {wide:#?}");
    }
    assert!(examples >= 28, "{examples}");
    // Examples that plan or look something up run as they are.
    for line in [
        "networks vgg16",
        "plan vgg19 --batch 128 --budget 8GiB --assume",
        "plan vgg19 --batch 128 --assume --inference",
    ] {
        folder.succeed(line);
    }
    assert!(folder.succeed("help plan").contains("--budget"));
}

#[test]
fn the_help_of_plan_explains_the_attempts_that_it_lists() {
    let folder = Folder::new();
    let help = folder.succeed("plan --help");
    let legend = help.split("Attempts in the table:").nth(1).unwrap();
    for options in [
        "--budget 3GiB",
        "--budget 5GiB --divide off",
        "--budget 4GiB --policy overlap",
        "--budget 4GiB --policy vdnn-dynamic",
        "--budget 5GiB --policy vdnn-all",
    ] {
        let plan = folder.json(&format!("plan vgg16 --batch 64 --assume {options}"));
        let attempts = plan["decisions"].as_array().unwrap();
        assert!(!attempts.is_empty(), "{plan:#}");
        for attempt in attempts {
            let name = attempt["attempt"].as_str().unwrap();
            // `8 segments`, `cheapest 60%` and `all(m), limited` are explained with the word alone.
            let word = match name.rsplit_once(" in ") {
                Some((_, parts)) if parts.ends_with("parts") => "in 2 parts",
                _ if name.starts_with("vdnn-") => "vdnn-..",
                _ => name.split([' ', '(', ',']).find(|word| word.parse::<u32>().is_err()).unwrap(),
            };
            assert!(legend.contains(word), "{name} is not in {legend}");
        }
    }
}

#[test]
fn completions_and_manual_pages_know_every_command_and_option() {
    let folder = Folder::new();
    for (shell, word) in [("bash", "_tightfit"), ("zsh", "#compdef tightfit"), ("fish", "complete -c tightfit")] {
        let script = folder.succeed(&format!("completions {shell}"));
        for part in [word, "tune-budget", "completions", "optimize"] {
            assert!(script.contains(part), "{shell}: {part}");
        }
    }
    let page = folder.succeed("man run");
    for part in [".TH tightfit-run", "tune\\-budget", "COMMON OPTIONS", "EXAMPLES"] {
        assert!(page.contains(part), "{part}: {page}");
    }
    assert!(folder.succeed("man").contains("tightfit\\-optimize"));
    folder.succeed("man --out .");
    let mut pages: Vec<String> =
        fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    pages.retain(|name| name.ends_with(".1"));
    assert_eq!(pages.len(), 22, "the command's own and one for each of its subcommands: {pages:?}");
    // Each page that another names is there.
    for name in &pages {
        let page = fs::read_to_string(folder.path().join(name)).unwrap();
        for named in page.lines().filter_map(|line| line.strip_suffix("(1)")) {
            assert!(pages.contains(&format!("{}.1", named.replace('\\', ""))), "{name}: {named}");
        }
    }
    assert!(folder.succeed("man cache list").contains("\\-\\-decisions"));
    assert!(folder.fail("man cache lists", 2).contains("choose list, export, import, merge, clear"));
    assert!(folder.fail("man run list", 2).contains("`run` has none"));
    assert_eq!(fs::read_to_string(folder.path().join("tightfit-run.1")).unwrap(), page);
    folder.succeed("man --out share/man1");
    assert!(folder.path().join("share/man1/tightfit-run.1").is_file());
    assert!(folder.fail("man --out tightfit.1", 1).contains("tightfit.1: cannot be made"));
    let message = folder.fail("man divide", 2);
    assert!(message.contains("divide") && message.contains("optimize"), "{message}");
    assert!(folder.fail("completions tcl", 2).contains("bash"));
}

#[test]
fn lines_of_examples_and_tables_stay_lines_in_manual_pages() {
    let folder = Folder::new();
    let page = folder.succeed("man plan");
    let (_, examples) = page.split_once(".SH EXAMPLES\n.nf\ntightfit plan vgg19 ").unwrap();
    let (examples, attempts) = examples.split_once(".fi\n.SH \"ATTEMPTS IN THE TABLE\"\n.nf\n").unwrap();
    assert!(examples.lines().count() > 2, "{examples}");
    // No request fills them again before the table ends.
    let (rows, _) = attempts.split_once("\n.").unwrap();
    assert!(rows.contains("\nmove 16          the inputs of 16 layers are offloaded, those that cost the\n"), "{rows}");
    assert!(!page.contains("EXTRA"), "{page}");
}

#[test]
fn a_size_without_a_unit_is_named() {
    let said = |arguments: &str, variables: &[(&str, &str)]| -> Vec<String> {
        let mut command = clean(TIGHTFIT);
        command.args(arguments.split_whitespace()).envs(variables.iter().copied());
        let errors = String::from_utf8(command.output().unwrap().stderr).unwrap();
        errors.lines().filter(|line| line.starts_with("warning: ")).map(str::to_owned).collect()
    };
    let replay = "--backend replay:no-file --cache none";
    let plan = "plan lenet --batch 4 --assume --cache none";
    let advice = "`64` means 64 bytes; for 64 MiB, write 64MiB (or 64B for bytes)";
    for (arguments, variables, name) in [
        (format!("optimize alexnet {replay} --workspace 64"), vec![], "--workspace"),
        (format!("optimize alexnet {replay} --total-workspace 64"), vec![], "--total-workspace"),
        (format!("verify alexnet {replay} --one-workspace 64"), vec![], "--one-workspace"),
        (format!("profile alexnet {replay} --workspace 64,1GiB"), vec![], "--workspace"),
        (format!("optimize alexnet {replay}"), vec![("TIGHTFIT_WORKSPACE", "64")], "TIGHTFIT_WORKSPACE"),
        (format!("split --network alexnet --batch 4 {replay} --memory 64"), vec![], "--memory"),
        (
            format!("split --network alexnet --batch 4 {replay}"),
            vec![("TIGHTFIT_WORKSPACE", "64")],
            "TIGHTFIT_WORKSPACE",
        ),
        (format!("{plan} --budget 64"), vec![], "--budget"),
        (plan.to_owned(), vec![("TIGHTFIT_BUDGET", "64")], "TIGHTFIT_BUDGET"),
        (format!("{plan} --host-budget 64"), vec![], "--host-budget"),
    ] {
        // A budget may also be a share.
        let is_budget = matches!(name, "--budget" | "TIGHTFIT_BUDGET");
        let share = if is_budget { "; for a share of what plain training needs, write 64%" } else { "" };
        let expected = format!("warning: {name}: {advice}{share}");
        assert_eq!(said(&arguments, &variables), [expected], "{arguments}");
    }
    for size in ["0", "64B", "64KiB", "1048576", "unlimited"] {
        assert_eq!(said(&format!("optimize alexnet {replay} --workspace {size}"), &[]), [""; 0], "{size}");
    }
}

#[test]
fn common_options_are_shown_and_taken_where_they_have_an_effect() {
    let folder = Folder::new();
    let all =
        "backend types layout threads devices cudnn every-engine deterministic exact-class cache format seed verbose";
    let shown = |command: &str| -> Vec<String> {
        let help = folder.succeed(&format!("{command} --help"));
        let options = help.lines().filter(|line| line.trim_start().starts_with('-'));
        let names = options.filter_map(|line| line.split_whitespace().find_map(|word| word.strip_prefix("--")));
        let names: Vec<&str> = names.map(|name| name.trim_end_matches('.')).collect();
        all.split(' ').filter(|name| names.contains(name)).map(str::to_owned).collect()
    };
    for (command, expected) in [
        ("networks", "format verbose"),
        ("report", "format verbose"),
        ("cache", "cache format verbose"),
        ("cache list", "cache format verbose"),
        ("doctor", "threads devices cudnn cache format verbose"),
        ("completions", ""),
        ("man", ""),
        ("run", "devices cudnn deterministic exact-class cache verbose"),
        ("split", "backend types layout devices cache format verbose"),
    ] {
        assert_eq!(shown(command).join(" "), expected, "{command}");
    }
    assert_eq!(shown("verify").join(" "), all);
    for (arguments, option) in [
        ("networks --seed 2", "--seed"),
        ("--seed 2 networks", "--seed"),
        ("cache list --types f16", "--types"),
        ("plan lenet --batch 4 --assume --seed 2", "--seed"),
        ("completions bash --format json", "--format"),
    ] {
        let message = folder.fail(arguments, 2);
        let expected = format!("the argument '{option}' cannot be used with '");
        assert!(message.contains(&expected) && message.contains("it has no effect there"), "{arguments}: {message}");
    }
    let mut command = folder.tightfit("networks");
    assert!(command.env("TIGHTFIT_SEED", "x").output().unwrap().status.success(), "a variable for other commands");
}

#[test]
fn engines_of_cudnn_are_tried_only_where_they_are() {
    let folder = Folder::new();
    let optimize = "optimize lenet --batch 2 --workspace 1MiB --every-engine";
    for (arguments, why) in [
        (format!("{optimize} --backend cpu"), "the CPU backend has none"),
        (format!("{optimize} --backend replay:{RECORDED}"), "a recording is already measured"),
        ("plan lenet --batch 2 --assume --every-engine".to_owned(), "--assume measures nothing"),
    ] {
        let message = folder.fail(&arguments, 2);
        assert!(message.contains("--every-engine") && message.contains(why), "{arguments}: {message}");
    }
    let output = folder.run(optimize);
    let message = text(&output.stderr);
    assert!(output.status.success() && message.contains("note: --every-engine has no effect: no GPU"), "{message}");
}
