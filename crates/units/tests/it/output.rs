//! Output files: whole or absent, through links, into special files, and without waiting forever.

use std::fs;
use std::io::Read;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use tempfile::TempDir;
use tightfit_units::{Bytes, Error, output};

fn folder() -> TempDir {
    tempfile::tempdir().unwrap()
}

fn pipe(folder: &TempDir) -> PathBuf {
    let pipe = folder.path().join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    pipe
}

/// The names in a folder, in order.
fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = entries.collect();
    names.sort();
    names
}

fn message(result: Result<(), Error>) -> String {
    result.unwrap_err().to_string()
}

#[test]
fn a_file_is_replaced_and_nothing_else_is_left() {
    let folder = folder();
    let file = folder.path().join("out.json");
    for content in ["one", "", "three"] {
        output::check(&file).unwrap();
        output::write(&file, content).unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), content);
    }
    // Names as long as they may be have a part too.
    let long = folder.path().join("n".repeat(255));
    output::write(&long, "long").unwrap();
    assert_eq!(names(folder.path()), ["n".repeat(255), "out.json".to_owned()]);
}

#[test]
fn a_file_that_is_there_keeps_its_permissions_and_a_new_one_has_the_umask() {
    let folder = folder();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
    let [old, new, plain] = ["old", "new", "plain"].map(|name| folder.path().join(name));
    fs::write(&old, "secret").unwrap();
    fs::set_permissions(&old, fs::Permissions::from_mode(0o640)).unwrap();
    fs::write(&plain, "").unwrap();
    for path in [&old, &new] {
        output::write(path, "changed").unwrap();
    }
    assert_eq!((mode(&old), mode(&new)), (0o640, mode(&plain)));
}

#[test]
fn links_are_followed_to_their_targets() {
    let folder = folder();
    fs::create_dir(folder.path().join("real")).unwrap();
    fs::write(folder.path().join("real/old"), "old").unwrap();
    for (link, target) in [("first", "second"), ("second", "real/old"), ("dangling", "real/new")] {
        symlink(target, folder.path().join(link)).unwrap();
    }
    for (link, target) in [("first", "real/old"), ("dangling", "real/new")] {
        output::check(&folder.path().join(link)).unwrap();
        output::write(&folder.path().join(link), link).unwrap();
        assert_eq!(fs::read_to_string(folder.path().join(target)).unwrap(), link);
        assert!(fs::symlink_metadata(folder.path().join(link)).unwrap().is_symlink(), "{link} is a link still");
    }
    assert_eq!(names(&folder.path().join("real")), ["new", "old"]);
    symlink("circle", folder.path().join("circle")).unwrap();
    assert!(message(output::write(&folder.path().join("circle"), "")).contains("circle: cannot be written"));
}

#[test]
fn a_device_is_not_replaced_by_a_file() {
    let folder = folder();
    let link = folder.path().join("null");
    symlink("/dev/null", &link).unwrap();
    output::check(&link).unwrap();
    output::write(&link, "gone").unwrap();
    assert!(fs::metadata("/dev/null").unwrap().file_type().is_char_device());
    assert_eq!(fs::read_link(&link).unwrap(), Path::new("/dev/null"));
    symlink("/dev/full", folder.path().join("full")).unwrap();
    assert!(message(output::write(&folder.path().join("full"), "x")).contains("the disk is full"));
}

#[test]
fn a_full_disk_is_refused_with_its_free_space() {
    let folder = folder();
    let path = folder.path().join("large");
    output::check_room(&path, Bytes(1)).unwrap();
    let refused = message(output::check_room(&path, Bytes(1 << 60)));
    assert!(refused.contains("large: cannot be written: the disk is full (1048576 TiB needed, "), "{refused}");
    assert!(refused.contains(" free); free some space"), "{refused}");
    output::check_room(Path::new("/dev/null"), Bytes(1 << 60)).unwrap();
    assert_eq!(names(folder.path()), [""; 0]);
}

#[test]
fn a_pipe_is_written_into() {
    let folder = folder();
    let pipe = pipe(&folder);
    // More than a pipe holds, so that the writer has to wait for the reader.
    let content = "0123456789abcde\n".repeat(20_000);
    let reader = std::thread::spawn({
        let pipe = pipe.clone();
        move || fs::read_to_string(pipe).unwrap()
    });
    // The reader waits in its open until there is a writer.
    while message_of(output::write(&pipe, &content)).is_some_and(|text| text.contains("nobody reads")) {
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(reader.join().unwrap(), content);
    assert!(fs::metadata(&pipe).unwrap().file_type().is_fifo());
    assert_eq!(names(folder.path()), ["pipe"]);
}

fn message_of(result: Result<(), Error>) -> Option<String> {
    result.err().map(|error| error.to_string())
}

#[test]
fn a_pipe_without_a_reader_is_not_waited_for() {
    let folder = folder();
    let pipe = pipe(&folder);
    output::check(&pipe).unwrap();
    for result in [output::write(&pipe, "x"), output::write_within(&pipe, b"x", Duration::from_secs(600))] {
        assert!(message(result).ends_with("pipe: is a pipe that nobody reads; start its reader first"));
    }
}

#[test]
fn a_reader_that_does_not_read_times_out() {
    let folder = folder();
    let pipe = pipe(&folder);
    let mut reader = fs::OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(&pipe).unwrap();
    let large = vec![b'x'; 1 << 20];
    let result = output::write_within(&pipe, &large, Duration::from_millis(20));
    assert!(message(result).contains("whose reader does not read"));
    let mut taken = Vec::new();
    reader.read_to_end(&mut taken).unwrap();
    assert!(!taken.is_empty() && taken.len() < large.len());
}

#[test]
fn unwritable_paths_are_explained_by_check_and_by_write() {
    let folder = folder();
    let path = |name: &str| folder.path().join(name);
    fs::write(path("file"), "kept").unwrap();
    let missing = format!("there is no folder {}", path("missing").display());
    for (name, part) in [
        ("", "is a folder"),
        (".", "is a folder"),
        ("new/", "is a folder"),
        ("missing/out", missing.as_str()),
        ("file/out", "is not a folder"),
    ] {
        for result in [output::check(&path(name)), output::write(&path(name), "x")] {
            let text = message(result);
            assert!(text.contains(part), "{name}: {text}");
        }
    }
    assert!(message(output::check(Path::new(""))).contains("is empty"));
    for path in ["/proc/self/out", "/proc/version"] {
        let text = message(output::write(Path::new(path), "x"));
        assert!(text.contains("cannot be written") && !text.contains("there is no folder"), "{text}");
    }
    let failed = output::write_with(&path("file"), |out| {
        out.write_all(b"half")?;
        Err(std::io::Error::other("the rest is missing"))
    });
    assert!(message(failed).contains("file: cannot be written"));
    assert_eq!(
        (names(folder.path()), fs::read_to_string(path("file")).unwrap()),
        (vec!["file".to_owned()], "kept".to_owned())
    );
}
