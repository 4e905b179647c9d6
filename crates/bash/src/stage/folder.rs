//! The private folder of one attempt: made with a random name, deleted whatever the command has left in it.
//!
//! Deleting never follows a link and never builds a path, and needs three descriptors for a tree of any depth: a folder
//! that is not empty is moved up to the top, and its turn comes there. By then all processes of the command are dead, so
//! nothing changes meanwhile.

use rustix::fs::{AtFlags, Dir, FlockOperation, Gid, Mode, OFlags, Uid};
use rustix::io::Errno;
use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

const PREFIX: &str = "bash-";
/// Between the moment a folder is made and the moment it is locked.
const NEW: Duration = Duration::from_secs(60);

pub struct Scratch {
    parent: OwnedFd,
    name: CString,
    path: PathBuf,
    /// Locked while its supervisor lives.
    folder: OwnedFd,
}

const FOLDER: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

impl Scratch {
    /// Makes the parent, too, if it does not exist. Other users may pass through it, and not look around.
    pub fn create(parent: &Path) -> io::Result<Self> {
        use std::os::unix::fs::DirBuilderExt;
        std::fs::DirBuilder::new().recursive(true).mode(0o711).create(parent)?;
        let path = std::fs::canonicalize(parent)?;
        let parent = rustix::fs::open(&path, FOLDER, Mode::empty())?;
        let name = format!("{PREFIX}{}", random_name()?);
        rustix::fs::mkdirat(&parent, &name, Mode::RWXU)?;
        let folder = rustix::fs::openat(&parent, &name, FOLDER, Mode::empty())?;
        rustix::fs::flock(&folder, FlockOperation::NonBlockingLockExclusive)?;
        Ok(Self { parent, path: path.join(&name), name: CString::new(name)?, folder })
    }

    /// A folder inside of it, for the user that the command will be.
    pub fn folder(&self, name: &str, user: Option<u32>) -> io::Result<PathBuf> {
        rustix::fs::mkdirat(&self.folder, name, Mode::RWXU)?;
        let folder = rustix::fs::openat(&self.folder, name, FOLDER, Mode::empty())?;
        give(&folder, user)?;
        Ok(self.path.join(name))
    }

    pub fn give_to(&self, user: Option<u32>) -> io::Result<()> {
        give(&self.folder, user)
    }

    pub fn remove(self) -> io::Result<()> {
        Ok(remove_tree(&self.parent, &self.name)?)
    }
}

fn give(folder: &OwnedFd, user: Option<u32>) -> io::Result<()> {
    if let Some(user) = user {
        rustix::fs::fchown(folder, Some(Uid::from_raw(user)), Some(Gid::from_raw(user)))?;
    }
    Ok(())
}

fn random_name() -> io::Result<String> {
    let mut bytes = [0; 8];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    Ok(format!("{:016x}", u64::from_ne_bytes(bytes)))
}

/// Deletes private folders whose supervisor is gone, which happens when it is killed or the machine stops. For the start
/// of the engine. The number of folders deleted, and what could not be.
pub fn remove_leftovers(scratch: &Path) -> io::Result<(usize, Vec<String>)> {
    remove_older(scratch, NEW)
}

fn remove_older(scratch: &Path, age: Duration) -> io::Result<(usize, Vec<String>)> {
    let (mut removed, mut problems) = (0, Vec::new());
    let parent = match rustix::fs::open(scratch, FOLDER, Mode::empty()) {
        Err(Errno::NOENT) => return Ok((0, problems)),
        parent => parent?,
    };
    for name in names(&parent)? {
        if !name.to_bytes().starts_with(PREFIX.as_bytes()) || !is_left_over(&parent, &name, age) {
            continue;
        }
        match remove_tree(&parent, &name) {
            Ok(()) => removed += 1,
            Err(error) => problems.push(format!("{}: {error}", name.to_string_lossy())),
        }
    }
    Ok((removed, problems))
}

fn is_left_over(parent: &OwnedFd, name: &CStr, age: Duration) -> bool {
    let Ok(folder) = rustix::fs::openat(parent, name, FOLDER, Mode::empty()) else { return false };
    let changed = rustix::fs::fstat(&folder).map_or(i64::MAX, |stat| stat.st_ctime);
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    now.as_secs().saturating_sub(age.as_secs()) as i64 >= changed
        && rustix::fs::flock(&folder, FlockOperation::NonBlockingLockExclusive).is_ok()
}

fn remove_tree(parent: &OwnedFd, name: &CStr) -> rustix::io::Result<()> {
    let root = open_folder(parent, name)?;
    let mut moves = Moves { prefix: random_name().unwrap_or_default(), count: 0 };
    loop {
        let entries = names(&root)?;
        if entries.is_empty() {
            return rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR);
        }
        for entry in entries {
            remove_entry(&root, &entry, &mut moves)?;
        }
    }
}

/// New names at the top of the tree.
struct Moves {
    prefix: String,
    count: u64,
}

fn remove_entry(root: &OwnedFd, entry: &CStr, moves: &mut Moves) -> rustix::io::Result<()> {
    if unlink(root, entry)? {
        return Ok(());
    }
    let folder = open_folder(root, entry)?;
    loop {
        let children = names(&folder)?;
        if children.is_empty() {
            return rustix::fs::unlinkat(root, entry, AtFlags::REMOVEDIR);
        }
        for child in children {
            if unlink(&folder, &child)? || rustix::fs::unlinkat(&folder, &child, AtFlags::REMOVEDIR).is_ok() {
                continue;
            }
            // A folder that moves gets another parent entry, for which its own permissions count.
            drop(open_folder(&folder, &child)?);
            moves.count += 1;
            rustix::fs::renameat(&folder, &child, root, format!("{}-{}", moves.prefix, moves.count))?;
        }
    }
}

/// `false` if it is a folder.
fn unlink(folder: &OwnedFd, name: &CStr) -> rustix::io::Result<bool> {
    match rustix::fs::unlinkat(folder, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(true),
        Err(Errno::ISDIR) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Opens a folder after making it ours to read, write and search. Nothing else is opened: not a link, not a pipe.
fn open_folder(parent: &OwnedFd, name: &CStr) -> rustix::io::Result<OwnedFd> {
    let path = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let found = rustix::fs::openat(parent, name, path, Mode::empty())?;
    // The descriptor itself cannot be changed, but the kernel's name for it leads to exactly this folder.
    let descriptor = format!("/proc/self/fd/{}", found.as_raw_fd());
    rustix::fs::chmodat(rustix::fs::CWD, descriptor, Mode::RWXU, AtFlags::empty())?;
    rustix::fs::openat(parent, name, FOLDER, Mode::empty())
}

/// In parts, so that a folder with millions of entries does not fill the memory.
const NAMES_MAX: usize = 10_000;

fn names(folder: &OwnedFd) -> rustix::io::Result<Vec<CString>> {
    let entries = Dir::read_from(folder)?.map(|entry| entry.map(|entry| entry.file_name().to_owned()));
    let is_entry =
        |name: &rustix::io::Result<CString>| !matches!(name, Ok(name) if [&b"."[..], b".."].contains(&name.to_bytes()));
    entries.filter(is_entry).take(NAMES_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_tree_of_any_shape_is_deleted_and_nothing_outside_of_it() {
        let parent = tempfile::tempdir().unwrap();
        let outside = parent.path().join("outside");
        std::fs::create_dir(&outside).unwrap();
        std::fs::write(outside.join("file"), "kept").unwrap();
        let scratch = Scratch::create(&parent.path().join("a/b")).unwrap();
        assert_eq!(std::fs::metadata(&scratch.path).unwrap().permissions().mode() & 0o7777, 0o700);
        let work = scratch.folder("work", None).unwrap();
        std::os::unix::fs::symlink(&outside, work.join("link")).unwrap();
        std::os::unix::fs::symlink("/", work.join("root")).unwrap();
        for wide in 0..50 {
            let folder = work.join(format!("wide-{wide}/x/y"));
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(folder.join("file"), "x").unwrap();
            let closed = work.join(format!("wide-{wide}"));
            std::fs::set_permissions(&closed, PermissionsExt::from_mode(0o000)).unwrap();
        }
        let other = Scratch::create(&parent.path().join("a/b")).unwrap();
        let path = scratch.path.clone();
        scratch.remove().unwrap();
        assert!(!path.exists() && other.path.exists());
        assert_eq!(std::fs::read_to_string(outside.join("file")).unwrap(), "kept");
        other.remove().unwrap();
    }

    #[test]
    fn a_tree_deeper_than_any_path_is_deleted_with_few_descriptors() {
        let parent = tempfile::tempdir().unwrap();
        let scratch = Scratch::create(parent.path()).unwrap();
        let mut folder = scratch.folder.try_clone().unwrap();
        for _ in 0..2_000 {
            rustix::fs::mkdirat(&folder, "deeper", Mode::RWXU).unwrap();
            folder = rustix::fs::openat(&folder, "deeper", FOLDER, Mode::empty()).unwrap();
        }
        let path = scratch.path.clone();
        scratch.remove().unwrap();
        assert!(!path.exists());
    }

    #[test]
    fn only_folders_without_a_supervisor_are_left_over() {
        let parent = tempfile::tempdir().unwrap();
        let scratch = Scratch::create(parent.path()).unwrap();
        std::fs::create_dir(parent.path().join("bash-new")).unwrap();
        std::fs::create_dir(parent.path().join("other")).unwrap();
        // Locked, new, or not ours.
        assert_eq!(remove_leftovers(parent.path()).unwrap(), (0, Vec::new()));
        assert_eq!(remove_leftovers(&parent.path().join("none")).unwrap(), (0, Vec::new()));
        assert_eq!(remove_older(parent.path(), Duration::ZERO).unwrap(), (1, Vec::new()));
        assert!(!parent.path().join("bash-new").exists() && parent.path().join("other").exists());
        assert!(scratch.path.exists());
        scratch.remove().unwrap();
    }
}
