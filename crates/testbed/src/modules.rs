//! Finds test files that are not compiled.

use std::path::Path;

/// Checks that each Rust file in the folder of a test binary is a module, also in subfolders.
///
/// A file that is not declared as a module is not compiled, and its tests never run.
///
/// # Panics
/// A file or subfolder is not a module, or cannot be read.
pub fn assert_every_file_is_a_module(folder: &Path) {
    assert_modules(folder, &folder.join("main.rs"));
}

/// Checks a folder against the file that declares its modules.
fn assert_modules(folder: &Path, root: &Path) {
    let source = std::fs::read_to_string(root)
        .unwrap_or_else(|error| panic!("cannot read {}: {error}", root.display()));
    for entry in std::fs::read_dir(folder).expect("a readable folder") {
        let path = entry.expect("a readable entry").path();
        let is_folder = path.is_dir();
        if path == root || !(is_folder || path.extension().is_some_and(|extension| extension == "rs")) {
            continue;
        }
        let name = path.file_stem().and_then(|name| name.to_str()).expect("a UTF-8 name");
        let declaration = format!("mod {name};");
        let declared = source.lines().any(|line| line.ends_with(&declaration) && !line.starts_with("//"));
        assert!(declared, "{} is not a module of {}", path.display(), root.display());
        if is_folder {
            assert_modules(&path, &path.join("mod.rs"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(files: &[(&str, &str)]) -> bool {
        let folder = tempfile::tempdir().expect("a folder");
        for (name, text) in files {
            let path = folder.path().join(name);
            std::fs::create_dir_all(path.parent().expect("its folder")).expect("a folder");
            std::fs::write(path, text).expect("a file");
        }
        std::panic::catch_unwind(|| assert_every_file_is_a_module(folder.path())).is_ok()
    }

    #[test]
    fn a_file_that_is_not_a_module_is_found_in_a_subfolder() {
        let main = ("main.rs", "mod a;\nmod b;\n");
        assert!(check(&[main, ("a.rs", ""), ("b/mod.rs", "pub(crate) mod c;\n"), ("b/c.rs", "")]));
        assert!(!check(&[main, ("a.rs", ""), ("b/mod.rs", ""), ("b/c.rs", "")]));
        assert!(!check(&[main, ("a.rs", ""), ("d.rs", "")]));
        assert!(!check(&[main, ("a.rs", ""), ("b/c.rs", "")]), "a folder needs a mod.rs");
    }
}
