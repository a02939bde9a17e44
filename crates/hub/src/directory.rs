//! Folders of the cache, opened once and then used by their handles: what is written lies in the folder that was
//! checked.
//!
//! A path that was checked leads elsewhere a moment later if somebody exchanges a folder for a link. So a folder is
//! opened part by part, and no part is a link; a link is followed only to another folder of the cache, which is opened
//! in the same way. Files in it are then made, renamed and removed by their names in the open folder. Systems other
//! than Unix, where users may not make links, use paths.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::path::{Component, Path};

#[cfg(unix)]
pub(crate) use by_handle::Directory;
#[cfg(not(unix))]
pub(crate) use by_path::Directory;

/// The names of the folders that lead from the cache to a folder in it.
fn parts<'a>(cache: &Path, folder: &'a Path) -> io::Result<Vec<&'a OsStr>> {
    let below = folder.strip_prefix(cache).map_err(io::Error::other)?;
    let name = |part| match part {
        Component::Normal(name) => Ok(name),
        _ => Err(io::Error::other(format!("expected a folder of the cache, found {}", folder.display()))),
    };
    below.components().map(name).collect()
}

/// The error of a link that leads out of the cache.
fn link_out(link: &Path) -> io::Error {
    io::Error::other(format!("expected a folder of the cache, found a link out: {}", link.display()))
}

#[cfg(unix)]
mod by_handle {
    use std::os::fd::OwnedFd;

    use rustix::fs::{AtFlags, Mode, OFlags};
    use rustix::io::{Errno, retry_on_intr};

    use super::*;

    /// Opens a folder, but not a link to one.
    const FOLDER: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
    /// Creates a file, and opens no link.
    const FILE: OFlags = OFlags::RDWR.union(OFlags::CREATE).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
    /// Permissions before the process's mask is applied.
    const FOLDER_MODE: Mode = Mode::RWXU.union(Mode::RWXG).union(Mode::RWXO);
    const FILE_MODE: Mode = Mode::from_raw_mode(0o666);

    /// An open folder of a cache.
    pub(crate) struct Directory(OwnedFd);

    impl Directory {
        /// Opens a folder of a cache; it, and the folders above it, are made if they are missing. The cache itself may
        /// be behind a link, and a folder may be a link to another one of the cache.
        ///
        /// # Errors
        /// The system's; or a folder is a link that leads out of the cache.
        pub(crate) fn make(cache: &Path, folder: &Path) -> io::Result<Self> {
            std::fs::create_dir_all(cache)?;
            let (root, mut place) = (Self::root(cache)?, cache.to_path_buf());
            let mut at = root.try_clone()?;
            for part in parts(cache, folder)? {
                place.push(part);
                at = match open_or_make(&at, part) {
                    Err(_) if std::fs::symlink_metadata(&place).is_ok_and(|found| found.is_symlink()) => {
                        inner(&root, cache, &place)?
                    }
                    other => other?,
                };
            }
            Ok(Self(at))
        }

        /// Opens an existing folder of a cache, not through any link in the cache.
        ///
        /// # Errors
        /// The system's, also if it is a link.
        pub(crate) fn existing(cache: &Path, folder: &Path) -> io::Result<Self> {
            let open_next = |at: OwnedFd, part: &OsStr| open(&at, part).map_err(io::Error::from);
            parts(cache, folder)?.into_iter().try_fold(Self::root(cache)?, open_next).map(Self)
        }

        fn root(cache: &Path) -> io::Result<OwnedFd> {
            let how = FOLDER.difference(OFlags::NOFOLLOW);
            Ok(retry_on_intr(|| rustix::fs::open(cache, how, Mode::empty()))?)
        }

        /// Opens a file for reading and writing, and creates it if it is missing.
        pub(crate) fn open_or_create(&self, name: &str) -> io::Result<File> {
            Ok(File::from(retry_on_intr(|| rustix::fs::openat(&self.0, name, FILE, FILE_MODE))?))
        }

        /// Creates a file of which there is none, not even as a link.
        pub(crate) fn create_new(&self, name: &str) -> io::Result<File> {
            let how = FILE.union(OFlags::EXCL);
            Ok(File::from(retry_on_intr(|| rustix::fs::openat(&self.0, name, how, FILE_MODE))?))
        }

        /// Creates a link to a blob, which is at `target` from here.
        pub(crate) fn link(&self, name: &str, target: &Path, _blob: &Path) -> io::Result<()> {
            Ok(rustix::fs::symlinkat(target, &self.0, name)?)
        }

        /// Renames a file in this folder.
        pub(crate) fn rename(&self, from: &str, to: &str) -> io::Result<()> {
            Ok(rustix::fs::renameat(&self.0, from, &self.0, to)?)
        }

        /// Removes a file or a link.
        pub(crate) fn remove(&self, name: &OsStr) -> io::Result<()> {
            Ok(rustix::fs::unlinkat(&self.0, name, AtFlags::empty())?)
        }

        /// Removes an empty folder.
        pub(crate) fn remove_folder(&self, name: &OsStr) -> io::Result<()> {
            Ok(rustix::fs::unlinkat(&self.0, name, AtFlags::REMOVEDIR)?)
        }
    }

    fn open(at: &OwnedFd, part: &OsStr) -> Result<OwnedFd, Errno> {
        retry_on_intr(|| rustix::fs::openat(at, part, FOLDER, Mode::empty()))
    }

    fn open_or_make(at: &OwnedFd, part: &OsStr) -> io::Result<OwnedFd> {
        match open(at, part) {
            Err(Errno::NOENT) => match rustix::fs::mkdirat(at, part, FOLDER_MODE) {
                // Another process may have made it at the same time.
                Ok(()) | Err(Errno::EXIST) => Ok(open(at, part)?),
                Err(error) => Err(error.into()),
            },
            other => Ok(other?),
        }
    }

    /// Opens the folder of the cache that a link leads to. Whatever is exchanged in the meantime, it is opened from the
    /// cache on and without links, so it is in the cache.
    fn inner(root: &OwnedFd, cache: &Path, link: &Path) -> io::Result<OwnedFd> {
        let (Ok(found), Ok(real)) = (link.canonicalize(), cache.canonicalize()) else { return Err(link_out(link)) };
        let below = parts(&real, &found).map_err(|_| link_out(link))?;
        below.into_iter().try_fold(root.try_clone()?, |at, part| Ok(open(&at, part)?))
    }
}

#[cfg(not(unix))]
mod by_path {
    use std::fs;
    use std::path::PathBuf;

    use super::*;

    /// A folder of a cache.
    pub(crate) struct Directory(PathBuf);

    impl Directory {
        /// A folder of a cache; it, and the folders above it, are made if they are missing.
        ///
        /// # Errors
        /// The system's; or a folder is a link that leads out of the cache.
        pub(crate) fn make(cache: &Path, folder: &Path) -> io::Result<Self> {
            fs::create_dir_all(cache)?;
            let (real, mut place) = (cache.canonicalize()?, cache.to_path_buf());
            for part in parts(cache, folder)? {
                place.push(part);
                fs::create_dir(&place).or_else(|error| if place.is_dir() { Ok(()) } else { Err(error) })?;
                if !place.canonicalize()?.starts_with(&real) {
                    return Err(link_out(&place));
                }
            }
            Ok(Self(place))
        }

        /// An existing folder of a cache.
        ///
        /// # Errors
        /// The system's, also if it is a link.
        pub(crate) fn existing(cache: &Path, folder: &Path) -> io::Result<Self> {
            let mut place = cache.to_path_buf();
            for part in parts(cache, folder)? {
                place.push(part);
                if !fs::symlink_metadata(&place)?.is_dir() {
                    return Err(io::ErrorKind::NotADirectory.into());
                }
            }
            Ok(Self(place))
        }

        /// Opens a file for reading and writing, and creates it if it is missing.
        pub(crate) fn open_or_create(&self, name: &str) -> io::Result<File> {
            File::options().read(true).write(true).create(true).truncate(false).open(self.0.join(name))
        }

        /// Creates a file of which there is none, not even as a link.
        pub(crate) fn create_new(&self, name: &str) -> io::Result<File> {
            File::options().read(true).write(true).create_new(true).open(self.0.join(name))
        }

        /// Users may not create symbolic links, so a hard link or a copy is made, as in `huggingface_hub`.
        pub(crate) fn link(&self, name: &str, _target: &Path, blob: &Path) -> io::Result<()> {
            let to = self.0.join(name);
            fs::hard_link(blob, &to).or_else(|_| fs::copy(blob, &to).map(|_| ()))
        }

        /// Renames a file in this folder.
        pub(crate) fn rename(&self, from: &str, to: &str) -> io::Result<()> {
            fs::rename(self.0.join(from), self.0.join(to))
        }

        /// Removes a file or a link.
        pub(crate) fn remove(&self, name: &OsStr) -> io::Result<()> {
            fs::remove_file(self.0.join(name))
        }

        /// Removes an empty folder.
        pub(crate) fn remove_folder(&self, name: &OsStr) -> io::Result<()> {
            fs::remove_dir(self.0.join(name))
        }
    }
}

#[cfg(all(test, unix))]
mod tests {
    use std::os::unix::fs::symlink;
    use std::{fs, io::Write};

    use super::*;

    #[test]
    fn an_open_folder_stays_the_same_if_a_link_takes_its_place() {
        let outside = tempfile::tempdir().expect("a folder can be made");
        let at = |name: &str| outside.path().join(name);
        let (cache, victim, moved) = (at("cache"), at("victim"), at("moved"));
        fs::create_dir(&victim).expect("a folder can be made");
        fs::write(victim.join("old"), "mine").expect("it can be written");
        let blobs = Directory::make(&cache, &cache.join("a/blobs")).expect("it is made");
        blobs.create_new("old").expect("it is made");
        fs::rename(cache.join("a"), &moved).expect("it can be moved");
        fs::create_dir(cache.join("a")).expect("a folder can be made");
        symlink(&victim, cache.join("a/blobs")).expect("a link can be made");
        blobs.create_new("new").and_then(|mut file| file.write_all(b"new")).expect("it is written");
        blobs.rename("new", "newer").expect("it is renamed");
        blobs.link("link", Path::new("newer"), Path::new("newer")).expect("it is made");
        blobs.remove("old".as_ref()).expect("it is removed");
        let names = |folder: &Path| -> Vec<String> {
            let entries = fs::read_dir(folder).expect("it is there").flatten();
            let mut names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
            names.sort();
            names
        };
        assert_eq!(names(&moved.join("blobs")), ["link", "newer"]);
        assert_eq!(
            (names(&victim), fs::read(victim.join("old")).expect("it is there")),
            (vec!["old".into()], b"mine".into())
        );
        // Neither to make nor to remove is it opened again.
        assert!(Directory::existing(&cache, &cache.join("a/blobs")).is_err());
        let refused = Directory::make(&cache, &cache.join("a/blobs")).err().expect("it is a link out").to_string();
        assert!(refused.starts_with("expected a folder of the cache, found a link out: "), "{refused}");
        assert!(Directory::make(&cache, &cache.join("../victim")).is_err());
        // A link to another folder of the cache is followed to make, and not to remove.
        fs::remove_file(cache.join("a/blobs")).expect("it is there");
        fs::create_dir(cache.join("all")).expect("a folder can be made");
        symlink("../all", cache.join("a/blobs")).expect("a link can be made");
        let inner = Directory::make(&cache, &cache.join("a/blobs")).expect("it is in the cache");
        inner.create_new("x").expect("it is made");
        assert!(cache.join("all/x").exists() && Directory::existing(&cache, &cache.join("a/blobs")).is_err());
    }
}
