//! A file gets its name only when it is complete, also with concurrent writers. Commands that write files are tested in
//! `cli`.

use super::*;

fn folder() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("out");
    (folder, path)
}

fn names(folder: &tempfile::TempDir) -> Vec<String> {
    let name = |entry: io::Result<std::fs::DirEntry>| entry.unwrap().file_name().to_string_lossy().into_owned();
    let mut names: Vec<String> = std::fs::read_dir(folder.path()).unwrap().map(name).collect();
    names.sort();
    names
}

#[test]
fn a_file_appears_when_it_is_complete_and_leaves_nothing_when_dropped() {
    let (folder, path) = folder();
    std::fs::write(&path, "old").unwrap();
    let mut file = OutputFile::create(&path, Existing::Replaced, &[]).unwrap();
    file.write_all(b"half").unwrap();
    assert_eq!(names(&folder).len(), 2, "the temporary file exists");
    drop(file);
    assert_eq!((names(&folder), std::fs::read(&path).unwrap()), (vec!["out".to_string()], b"old".to_vec()));
    let mut file = OutputFile::create(&path, Existing::Replaced, &[]).unwrap();
    file.write_all(b"whole").unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), b"old");
    file.finish().unwrap();
    assert_eq!((names(&folder), std::fs::read(&path).unwrap()), (vec!["out".to_string()], b"whole".to_vec()));
}

#[test]
fn a_file_that_is_created_meanwhile_is_kept() {
    let (folder, path) = folder();
    let mut file = OutputFile::create(&path, Existing::Kept, &[]).unwrap();
    file.write_all(b"ours").unwrap();
    std::fs::write(&path, "theirs").unwrap();
    let expected = format!("{}: expected no such file (force writes over it), found one", path.display());
    assert_eq!(file.finish().unwrap_err().to_string(), expected);
    assert_eq!((names(&folder), std::fs::read(&path).unwrap()), (vec!["out".to_string()], b"theirs".to_vec()));
    std::fs::remove_file(&path).unwrap();
    OutputFile::create(&path, Existing::Kept, &[]).unwrap().finish().unwrap();
    assert_eq!(names(&folder), ["out"]);
}

#[test]
fn only_abandoned_temporary_files_are_removed() {
    let (folder, path) = folder();
    let left = folder.path().join(".out.1-0.part");
    std::fs::write(&left, "half").unwrap();
    let writes = File::open(&left).unwrap();
    writes.lock().unwrap();
    let mine = OutputFile::create(&path, Existing::Kept, &[]).unwrap();
    let other = OutputFile::create(&path, Existing::Kept, &[]).unwrap();
    assert_eq!(names(&folder).len(), 3, "each has a file of its own");
    drop(writes);
    let third = OutputFile::create(&path, Existing::Replaced, &[]).unwrap();
    assert_eq!(names(&folder).len(), 3, "the abandoned one is removed");
    other.finish().unwrap();
    third.finish().unwrap();
    mine.finish().unwrap_err();
    assert_eq!(names(&folder), ["out"]);
}

#[cfg(unix)]
#[test]
fn permissions_are_kept_and_new_ones_follow_the_umask() {
    use std::os::unix::fs::PermissionsExt;
    let (folder, path) = folder();
    let mode = || std::fs::metadata(&path).unwrap().permissions().mode() & 0o777;
    OutputFile::create(&path, Existing::Kept, &[]).unwrap().finish().unwrap();
    std::fs::write(folder.path().join("usual"), "").unwrap();
    assert_eq!(mode(), std::fs::metadata(folder.path().join("usual")).unwrap().permissions().mode() & 0o777);
    std::fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
    OutputFile::create(&path, Existing::Replaced, &[]).unwrap().finish().unwrap();
    assert_eq!(mode(), 0o640);
    OutputFile::kept(&folder.path().join("own")).unwrap().end().unwrap();
    assert_eq!(std::fs::metadata(folder.path().join("own")).unwrap().permissions().mode() & 0o777, 0o600);
}

#[cfg(unix)]
#[test]
fn files_of_a_folder_that_is_read_are_protected_under_all_their_names() {
    let (folder, path) = folder();
    let at = |name: &str| folder.path().join(name);
    std::fs::create_dir_all(at("model/inner")).unwrap();
    std::fs::write(at("model/inner/weights"), "w").unwrap();
    std::fs::write(at("model/ours.gguf"), "ours").unwrap();
    std::os::unix::fs::symlink("..", at("model/inner/up")).unwrap();
    std::fs::hard_link(at("model/inner/weights"), &path).unwrap();
    let read = [at("model")];
    let refused = |path: &Path| OutputFile::create(path, Existing::Replaced, &read).unwrap_err().to_string();
    for path in [&path, &at("model/inner/weights"), &at("model/inner/up/inner/weights")] {
        let read = read[0].display();
        assert_eq!(refused(path), format!("{}: expected another file than what is read, found {read}", path.display()));
    }
    assert!(refused(&at("model")).ends_with("model: cannot be written: expected a file, found a folder"));
    OutputFile::create(&at("model/ours.gguf"), Existing::Replaced, &read).unwrap().finish().unwrap();
    // All parts of a model are read, whichever part is named.
    let [first, second, other] = ["m-00001-of-00002.gguf", "m-00002-of-00002.gguf", "n-00002-of-00002.gguf"].map(at);
    [&first, &second, &other].into_iter().for_each(|part| std::fs::write(part, "part").unwrap());
    let read = [first];
    OutputFile::create(&second, Existing::Replaced, &read).unwrap_err();
    OutputFile::create(&other, Existing::Replaced, &read).unwrap();
}
