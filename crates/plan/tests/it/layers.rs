//! Folders form layers: each imports only from its own layer and the layers before it. An export of the crate's root counts as the folder that
//! defines it.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// A crate's layers, first to last; names on one line are one level and may import each other.
struct Crate {
    name: &'static str,
    layers: &'static [&'static [&'static str]],
}

/// A level with a comment has circular imports, and the comment gives the reason. On all other levels no folder imports another.
const CRATES: &[Crate] = &[
    Crate {
        name: "units",
        layers: &[
            // The quantities are read from text, and the errors that this can give show quantities.
            &["quantity", "error"],
            &["bounded", "output", "random", "words"],
        ],
    },
    Crate { name: "conv", layers: &[&["problem"], &["candidate"], &["backend"], &["optimize"], &["execute"]] },
    Crate {
        name: "network",
        layers: &[
            &["behavior", "kernels", "rule", "sampling", "shape"],
            &["fields"],
            &["activation", "pooling"],
            // A kind of layer checks its facts; one kind has any other operator's, with a function that knows kinds of parameters.
            &["builder", "function", "kind", "layer", "other"],
            &["built_in", "concurrent", "list", "maps"],
            &["json"],
        ],
    },
    Crate {
        name: "profile",
        layers: &[
            &["comparison", "key", "owner", "store"],
            &["profiler"],
            &["decision", "survey"],
            // Everything that is read is checked, and the checks know the parts of a recording.
            &["bounds", "recording"],
            &["cache", "model", "replay"],
            &["mixed", "selection"],
            &["answer"],
        ],
    },
    Crate {
        name: "plan",
        layers: &[
            &["flow", "step", "stop", "threads"],
            &["options", "schedule"],
            &["check", "lowering", "simulate"],
            &["result"],
            &["file", "memory"],
            &["attempts", "eager"],
            &["vdnn"],
            &["search"],
            &["planner"],
        ],
    },
    Crate { name: "report", layers: &[&["grid", "head", "json", "svg"], &["csv", "plan", "slower"], &["table"]] },
    Crate {
        name: "cpu",
        layers: &[
            &["arena", "host_memory", "machine", "random", "shape", "simd", "team", "workspace"],
            &["gemm"],
            &["call", "strips", "unfold"],
            &["blocked_gemm", "direct", "explicit_gemm", "fft", "implicit_gemm", "transform", "winograd"],
            &["method"],
            &["backend", "layers"],
            &["tests"],
        ],
    },
    Crate {
        name: "cuda",
        layers: &[
            &["sys", "version"],
            &["error"],
            &["call"],
            &["load"],
            &["safe"],
            &["convolution", "kernels"],
            // The backend, the layers on its session, and the doctor's descriptions of libraries.
            &["backend", "layers", "doctor"],
        ],
    },
    Crate {
        name: "train",
        layers: &[
            &["error"],
            &["host_memory", "data", "initialize", "rate"],
            &["machine"],
            &["resolve", "observe", "trace"],
            &["sharing"],
            // The engine has what is learned; weights of a file take its place, also where the engine makes copies equal.
            &["engine", "weights"],
            &["checkpoint"],
            &["evaluate"],
        ],
    },
    Crate {
        name: "cli",
        layers: &[
            &["message", "rates"],
            &["failure", "progress"],
            &["interrupt", "model", "preload", "options", "estimate"],
            &["session"],
            &["planning", "solve"],
            &["largest"],
            &["commands"],
            &["bin"],
        ],
    },
    Crate {
        name: "preload",
        layers: &[
            &["lock", "process_libraries", "ranks", "sigpipe", "torch"],
            &["layer", "swap_cell", "worker"],
            &["log"],
            &["panics", "reason", "settings", "report_state"],
            &["limits"],
            // The real library; what the program said of its descriptors.
            &["original", "shadow"],
            &["recognize"],
            &["kernel"],
            &["session", "decision", "progress"],
            &["judge"],
            &["memory", "choose"],
            &["tune"],
            // The one state, made of what stands above; what stands below uses all of it.
            &["process"],
            &["forward"],
            &["decide"],
            &["program", "summary", "launched_program"],
            &["report"],
            &["run"],
            &["exports"],
            &["trampolines"],
        ],
    },
    Crate {
        name: "python",
        layers: &[
            &["command", "failure", "device", "fates", "noting"],
            &["interrupt", "prepare", "flow"],
            &["profile", "planned"],
            &["eager", "measure", "mixed", "plan", "solve"],
            &["verify"],
        ],
    },
];

#[test]
fn no_folder_imports_upward() {
    let mut upward = Vec::new();
    for of in CRATES {
        upward.extend(arrows_up(&source(of.name), of));
    }
    assert!(upward.is_empty(), "{}", upward.join("\n"));
}

#[test]
fn an_import_upward_is_found_directly_and_through_the_root() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    write("lib.rs", "mod high;\nmod low;\npub use high::{Roof, inner::Beam};\npub use low::Ground;\n");
    write("high/mod.rs", "use crate::Ground;\n");
    let layers = Crate { name: "example", layers: &[&["low"], &["high"]] };
    let up = |text: &str| {
        write("low.rs", text);
        arrows_up(folder.path(), &layers)
    };
    assert!(up("use std::fmt;\n// use crate::high::Roof;\n").is_empty());
    for fault in [
        "use crate::high::Roof;",
        "use crate::{\n    Roof,\n};",
        "use crate::Beam as Rafter;",
        "use super::high::Roof;",
        "fn f() { crate::high::raise() }",
        "pub(crate) use super::{Ground, high};",
        "mod deeper { use super::super::high::Roof; }",
    ] {
        assert_eq!(up(fault).len(), 1, "{fault}");
    }
}

#[test]
fn every_folder_has_its_layer() {
    for of in CRATES {
        let known: Vec<&str> = of.layers.iter().flat_map(|layer| layer.iter().copied()).collect();
        let (mut missing, mut there) = (Vec::new(), Vec::new());
        for entry in fs::read_dir(source(of.name)).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            let name = name.trim_end_matches(".rs").to_owned();
            if !["lib", "main"].contains(&name.as_str()) && !known.contains(&name.as_str()) {
                missing.push(name.clone());
            }
            there.push(name);
        }
        assert!(missing.is_empty(), "{}: no layer for {missing:?}", of.name);
        let gone: Vec<_> = known.iter().filter(|name| !there.iter().any(|known| known == *name)).collect();
        assert!(gone.is_empty(), "{}: layers without a folder: {gone:?}", of.name);
    }
}

fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(name).join("src")
}

/// Every import from a later layer, as `file: path`.
fn arrows_up(source: &Path, of: &Crate) -> Vec<String> {
    let level = |folder: &str| of.layers.iter().position(|layer| layer.contains(&folder));
    // A program exports nothing.
    let exports = exports(&fs::read_to_string(source.join("lib.rs")).unwrap_or_default());
    let mut up = Vec::new();
    for file in files(source) {
        let within = file.strip_prefix(source).unwrap();
        let module: Vec<String> = within.with_extension("").iter().map(|part| part.to_string_lossy().into()).collect();
        let Some(own) = level(&module[0]) else { continue };
        let text = fs::read_to_string(&file).unwrap();
        // Tests may use the whole crate.
        let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
        for path in paths(code, &module).into_iter().filter(|_| !module.ends_with(&["tests".to_owned()])) {
            let first = exports.get(&path[0]).unwrap_or(&path[0]);
            if level(first).is_some_and(|other| other > own) {
                up.push(format!("{}: {}", within.display(), path.join("::")));
            }
        }
    }
    up
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    found.sort();
    found
}

/// The folder behind each name that the root exports.
fn exports(root: &str) -> BTreeMap<String, String> {
    let uses = statements(root).into_iter().flat_map(|tree| leaves(&tree));
    uses.filter(|path| path.len() > 1).map(|path| (path[path.len() - 1].clone(), path[0].clone())).collect()
}

/// Every path into the crate, from its root: of `use` statements, and written out in the code.
fn paths(text: &str, module: &[String]) -> Vec<Vec<String>> {
    let code = without_comments(text);
    let depth = if module.last().is_some_and(|last| last == "mod") { module.len() - 1 } else { module.len() };
    let mut found = Vec::new();
    for path in statements(&code).iter().flat_map(|tree| leaves(tree)) {
        let ups = path.iter().take_while(|part| *part == "super").count();
        match path[0].as_str() {
            "crate" => found.push(path[1..].to_vec()),
            // One `super` more than the file's depth leaves its inner modules. `depth` of them reach the root.
            "super" if ups >= depth => found.push(path[ups..].to_vec()),
            _ => {}
        }
    }
    let uses: Vec<String> = statements(&code);
    let mut rest = code.clone();
    for tree in &uses {
        rest = rest.replacen(tree, "", 1);
    }
    for (place, _) in rest.match_indices("crate::") {
        if rest[..place].ends_with(|before: char| before.is_alphanumeric() || before == '_' || before == '$') {
            continue;
        }
        let word = |text: &str| text.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect::<String>();
        found.push(vec![word(&rest[place + "crate::".len()..])]);
    }
    found.retain(|path| !path.is_empty() && !path[0].is_empty());
    found
}

fn without_comments(text: &str) -> String {
    let code = |line: &str| line.find("//").map_or(line.to_owned(), |start| line[..start].to_owned());
    text.lines().map(|line| code(line) + "\n").collect()
}

/// The text between `use` and `;` of every statement.
fn statements(code: &str) -> Vec<String> {
    let starts = code.match_indices("use ").filter(|(place, _)| {
        let before = code[..*place].trim_end_matches([' ', '\n']);
        let whole_word = code[..*place].is_empty() || code[..*place].ends_with([' ', '\n']);
        whole_word
            && (before.is_empty() || before.ends_with([';', '{', '}', ')', ']', '\n']) || before.ends_with("pub"))
    });
    starts.filter_map(|(place, word)| Some(code[place + word.len()..].split(';').next()?.to_owned())).collect()
}

/// The paths of a `use` tree: `a::{b, c::d}` becomes `a::b` and `a::c::d`; the name after `as` is the new name.
fn leaves(tree: &str) -> Vec<Vec<String>> {
    let (prefix, inner) = match tree.split_once('{') {
        Some((prefix, rest)) => (prefix, rest.rsplit_once('}').map(|(inner, _)| inner)),
        None => (tree, None),
    };
    let parts = |path: &str| -> Vec<String> {
        let path = path.split(" as ").next().unwrap_or_default();
        path.split("::").map(|part| part.trim().to_owned()).filter(|part| !part.is_empty()).collect()
    };
    let Some(inner) = inner else { return Some(parts(tree)).filter(|path| !path.is_empty()).into_iter().collect() };
    let (mut depth, mut start, mut pieces) = (0, 0, Vec::new());
    for (place, letter) in inner.char_indices() {
        match letter {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                pieces.push(&inner[start..place]);
                start = place + 1;
            }
            _ => {}
        }
    }
    pieces.push(&inner[start..]);
    let prefix = parts(prefix);
    let deeper = pieces.into_iter().filter(|piece| !piece.trim().is_empty()).flat_map(leaves);
    deeper.map(|path| prefix.iter().cloned().chain(path).collect()).collect()
}
