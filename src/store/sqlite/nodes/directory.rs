//! The directory `FILE-nodes`: opened without following symbolic links, checked, and reached through its handle.
//!
//! Files in it decide which nodes are alive, so only the owner of the store may be able to change them. A file is opened,
//! created and removed relative to the handle: a process whose directory was deleted never mixes its files with those of
//! a new one, and root never leaves a directory whose owner puts a symbolic link in its place. Two calls take only paths:
//! - Sockets: on Linux, their path leads through the handle ([`NodesDir::with_socket_path`]).
//! - SQLite, which resolves every link itself: [`NodesDir::checked_path`] compares directory and file with the handle.

use std::fs::File;
use std::io;
#[cfg(target_os = "linux")]
use std::os::fd::AsRawFd;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, fchown};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{AtFlags, FileType, FlockOperation, Mode, OFlags, Timespec, Timestamps};

/// How long to wait for another process that creates or checks the directory.
const LOCK_TIMEOUT: Duration = Duration::from_secs(5);
const LOCK_RETRY_DELAY: Duration = Duration::from_millis(1);
/// The directory with a path for each open handle of this process.
#[cfg(target_os = "linux")]
const HANDLES_DIR: &str = "/proc/self/fd";
/// Most bytes of a small file in the directory.
const SMALL_FILE_BYTES_MAX: u64 = 4_096;

/// The identity of a file while it exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileId {
    pub(crate) device: u64,
    pub(crate) inode: u64,
}

impl FileId {
    /// Returns the identity of the file at this path; `None` if there is none.
    pub(crate) fn at(path: &Path) -> Option<Self> {
        std::fs::symlink_metadata(path).ok().map(|file| FileId { device: file.dev(), inode: file.ino() })
    }

    pub(crate) fn of(file: impl AsFd) -> io::Result<Self> {
        rustix::fs::fstat(file).map(|stat| FileId::from_stat(&stat)).map_err(io::Error::from)
    }

    #[allow(clippy::useless_conversion, clippy::cast_lossless, reason = "the types differ between systems")]
    fn from_stat(stat: &rustix::fs::Stat) -> Self {
        FileId { device: (stat.st_dev as i64).cast_unsigned(), inode: stat.st_ino.into() }
    }
}

/// The directory that the processes on one file share.
#[derive(Debug)]
pub(crate) struct NodesDir {
    path: PathBuf,
    handle: OwnedFd,
    id: FileId,
}

impl NodesDir {
    /// Returns the path of the directory of a file.
    pub(crate) fn path_of(file: &Path) -> PathBuf {
        let mut name = file.as_os_str().to_owned();
        name.push("-nodes");
        PathBuf::from(name)
    }

    /// Opens the directory of a file, and creates it if needed.
    pub(crate) fn open(file: &Path) -> io::Result<Self> {
        let path = NodesDir::path_of(file);
        let is_new = match rustix::fs::mkdir(&path, Mode::RWXU) {
            Ok(()) => true,
            Err(rustix::io::Errno::EXIST) => false,
            Err(e) => return Err(e.into()),
        };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let handle = rustix::fs::open(&path, flags, Mode::empty()).map_err(|e| match e {
            rustix::io::Errno::LOOP | rustix::io::Errno::NOTDIR => {
                io::Error::other("is a symbolic link, or not a directory; remove it")
            }
            e => e.into(),
        })?;
        if is_new {
            give_to_owner_of(&handle, file)?;
        }
        check_owner(&handle, file)?;
        let id = FileId::of(&handle)?;
        Ok(NodesDir { path, handle, id })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns whether the directory is still at its path.
    pub(crate) fn is_current(&self) -> bool {
        FileId::at(&self.path) == Some(self.id)
    }

    /// Returns the identity of a file in the directory; `None` if there is none.
    pub(crate) fn file_id(&self, name: &str) -> Option<FileId> {
        let stat = rustix::fs::statat(&self.handle, name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
        Some(FileId::from_stat(&stat))
    }

    /// Opens a file for reading and writing.
    pub(crate) fn open_file(&self, name: &str) -> io::Result<File> {
        let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        check_regular(rustix::fs::openat(&self.handle, name, flags, Mode::empty())?.into())
    }

    /// Opens a file for reading.
    pub(crate) fn open_for_reading(&self, name: &str) -> io::Result<File> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        check_regular(rustix::fs::openat(&self.handle, name, flags, Mode::empty())?.into())
    }

    /// Creates a file. It belongs to the owner of the directory, even if root creates it: otherwise one command of root
    /// would lock out the usual user of the store.
    pub(crate) fn create_file(&self, name: &str) -> io::Result<File> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&self.handle, name, flags, Mode::RUSR | Mode::WUSR)?;
        give_to_owner(&file, &self.handle)?;
        Ok(file.into())
    }

    /// Opens a file, and creates it if needed.
    pub(crate) fn open_or_create(&self, name: &str) -> io::Result<File> {
        match self.create_file(name) {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => self.open_file(name),
            made => made,
        }
    }

    /// Gives a file a second name, which must not exist.
    pub(crate) fn link(&self, from: &str, to: &str) -> io::Result<()> {
        rustix::fs::linkat(&self.handle, from, &self.handle, to, AtFlags::empty()).map_err(io::Error::from)
    }

    pub(crate) fn remove(&self, name: &str) -> io::Result<()> {
        rustix::fs::unlinkat(&self.handle, name, AtFlags::empty()).map_err(io::Error::from)
    }

    /// Makes a socket accessible only to its owner.
    #[cfg(target_os = "linux")]
    pub(crate) fn restrict_socket(&self, name: &str) -> io::Result<()> {
        // A handle of the socket itself: a symbolic link could take its place between the check and the change.
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let socket = rustix::fs::openat(&self.handle, name, flags, Mode::empty())?;
        check_socket(name, &rustix::fs::fstat(&socket)?)?;
        match rustix::fs::chmod(handle_path(&socket), Mode::RUSR | Mode::WUSR) {
            // Without `/proc` the mode stays, and the mode of the directory protects the socket.
            Err(rustix::io::Errno::NOENT) if !has_handle_paths() => Ok(()),
            changed => changed.map_err(io::Error::from),
        }
    }

    /// Makes a socket accessible only to its owner.
    #[cfg(not(target_os = "linux"))]
    pub(crate) fn restrict_socket(&self, name: &str) -> io::Result<()> {
        check_socket(name, &rustix::fs::statat(&self.handle, name, AtFlags::SYMLINK_NOFOLLOW)?)?;
        rustix::fs::chmodat(&self.handle, name, Mode::RUSR | Mode::WUSR, AtFlags::SYMLINK_NOFOLLOW)
            .map_err(io::Error::from)
    }

    /// Calls `run` with a path of a socket in the directory. The path leads through the handle and is short.
    #[cfg(target_os = "linux")]
    pub(crate) fn with_socket_path<T>(&self, name: &str, run: impl Fn(&Path) -> io::Result<T>) -> io::Result<T> {
        match run(&handle_path(&self.handle).join(name)) {
            Err(e) if e.kind() == io::ErrorKind::NotFound && !has_handle_paths() => run(&self.path.join(name)),
            done => done,
        }
    }

    /// Calls `run` with the path of a socket in the directory: only Linux has paths through a handle.
    #[cfg(not(target_os = "linux"))]
    pub(crate) fn with_socket_path<T>(&self, name: &str, run: impl Fn(&Path) -> io::Result<T>) -> io::Result<T> {
        run(&self.path.join(name))
    }

    /// Returns the path of a file, for SQLite. Fails if the path leads to another file, because the directory or the
    /// file was replaced. Call it before and after the file is opened.
    pub(crate) fn checked_path(&self, name: &str) -> io::Result<PathBuf> {
        let path = self.path.join(name);
        if self.is_current() && FileId::at(&path) == self.file_id(name) {
            return Ok(path);
        }
        Err(io::Error::other(format!("{} was replaced while it was opened; try again", path.display())))
    }

    /// Returns whether this is a file that has no other name, and no link or device.
    pub(crate) fn is_plain_file(&self, name: &str) -> bool {
        // Looks without opening: closing a database of SQLite would drop the locks of this process on it.
        let stat = rustix::fs::statat(&self.handle, name, AtFlags::SYMLINK_NOFOLLOW);
        stat.is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile && stat.st_nlink == 1)
    }

    /// Sets the times of a file to now, so that programs that delete old files keep it.
    pub(crate) fn touch(&self, name: &str) {
        touch_at(&self.handle, Path::new(name));
    }

    /// Reads a small file; `None` if there is none, or if it is no text.
    pub(crate) fn read_text(&self, name: &str) -> Option<String> {
        use std::io::Read;
        let mut text = String::new();
        let file = self.open_for_reading(name).ok()?;
        file.take(SMALL_FILE_BYTES_MAX).read_to_string(&mut text).ok()?;
        Some(text)
    }

    /// Replaces a small file. The caller holds the lock of the directory.
    pub(crate) fn write_text(&self, name: &str, text: &str) -> io::Result<()> {
        use std::io::Write;
        let new = format!("{name}.new");
        let _ = self.remove(&new);
        self.create_file(&new)?.write_all(text.as_bytes())?;
        rustix::fs::renameat(&self.handle, &new, &self.handle, name).map_err(io::Error::from)
    }

    /// Waits for the lock that serialises creating and checking the directory. It ends with the returned handle.
    pub(crate) fn lock(&self) -> io::Result<OwnedFd> {
        // A handle of its own: a lock belongs to the open file, and threads of one process must exclude each other too.
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let handle = rustix::fs::openat(&self.handle, ".", flags, Mode::empty())?;
        for _ in 0..LOCK_TIMEOUT.as_millis() / LOCK_RETRY_DELAY.as_millis() {
            match rustix::fs::flock(&handle, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(handle),
                Err(rustix::io::Errno::WOULDBLOCK) => std::thread::sleep(LOCK_RETRY_DELAY),
                Err(e) => return Err(e.into()),
            }
        }
        Err(io::Error::other(
            "timed out waiting for another process that opens the store; try again, or end that process if it is stopped",
        ))
    }
}

/// Sets the times of the file at this path to now.
pub(crate) fn touch_path(path: &Path) {
    touch_at(rustix::fs::CWD, path);
}

fn touch_at(dir: impl AsFd, name: &Path) {
    let now = Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_NOW };
    let times = Timestamps { last_access: now, last_modification: now };
    // If the file is gone, the next check of the directory finds that.
    let _ = rustix::fs::utimensat(dir, name, &times, AtFlags::SYMLINK_NOFOLLOW);
}

/// Returns a path that leads to the file of a handle, also if its own path leads elsewhere now.
#[cfg(target_os = "linux")]
fn handle_path(handle: &OwnedFd) -> PathBuf {
    Path::new(HANDLES_DIR).join(handle.as_raw_fd().to_string())
}

/// Returns whether [`handle_path`] works: a container may have no `/proc`.
#[cfg(target_os = "linux")]
fn has_handle_paths() -> bool {
    Path::new(HANDLES_DIR).exists()
}

fn check_socket(name: &str, stat: &rustix::fs::Stat) -> io::Result<()> {
    if FileType::from_raw_mode(stat.st_mode) == FileType::Socket {
        return Ok(());
    }
    Err(io::Error::other(format!("{name} is no socket; remove it")))
}

/// Rejects a device, a pipe, and a file that has another name elsewhere.
fn check_regular(file: File) -> io::Result<File> {
    let found = file.metadata()?;
    // Zero: it was deleted after it was opened.
    if !found.is_file() || found.nlink() > 1 {
        return Err(io::Error::other(
            "the directory contains a link or a device; stop all processes on the store and remove the directory",
        ));
    }
    Ok(file)
}

/// Rejects a directory that a user other than the owner of the store has created or can change.
fn check_owner(dir: &OwnedFd, file: &Path) -> io::Result<()> {
    let (dir, store) = (rustix::fs::fstat(dir)?, std::fs::metadata(file)?);
    let allowed = [rustix::process::geteuid().as_raw(), store.uid(), 0];
    if !allowed.contains(&dir.st_uid) {
        let reason = format!(
            "belongs to user {}, but the store belongs to user {}; stop all processes on the store and remove the directory",
            dir.st_uid,
            store.uid()
        );
        return Err(io::Error::other(reason));
    }
    #[allow(clippy::useless_conversion, clippy::unnecessary_cast, reason = "the type differs between systems")]
    let writable = dir.st_mode as u32 & 0o022;
    if writable & !store.mode() != 0 {
        return Err(io::Error::other("can be changed by other users than the store; run chmod 700 on it"));
    }
    Ok(())
}

/// If root created the file, gives it to the owner of `belongs_to`, as SQLite does with a WAL.
fn give_to_owner_of(made: impl AsFd, belongs_to: &Path) -> io::Result<()> {
    let owner = std::fs::metadata(belongs_to)?;
    give_to(made, owner.uid(), owner.gid())
}

fn give_to_owner(made: impl AsFd, belongs_to: impl AsFd) -> io::Result<()> {
    let owner = rustix::fs::fstat(belongs_to)?;
    give_to(made, owner.st_uid, owner.st_gid)
}

/// Uses the handle of a new file, never a path: the owner of the directory could make a path lead to a file of root.
fn give_to(made: impl AsFd, user: u32, group: u32) -> io::Result<()> {
    if rustix::process::geteuid().is_root() {
        // Root may lack the right to do this, for example in a container. The file then stays with root.
        let _ = fchown(made, Some(user), Some(group));
    }
    Ok(())
}
