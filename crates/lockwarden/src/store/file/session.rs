//! A session's files: the one it keeps locked while it lives, and the socket for hints (R40).
//!
//! Nobody asks about or removes the files of its own process's sessions: see [`super::own`].

use super::{
    fail::{Place, from_io},
    own,
    place::{Identity, identity_at, identity_of},
};
use crate::{
    error::{StoreError, Trouble},
    process::Unforked,
};
use lockwarden_core::SessionId;
use rustix::{
    fd::OwnedFd,
    fs::{AtFlags, FlockOperation, Mode, OFlags},
    io::Errno,
    net::{SendFlags, SocketAddrUnix},
    process::{Flock, FlockType},
};
use std::{
    fs, io,
    os::fd::AsRawFd,
    path::{Path, PathBuf},
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};
use tokio::{io::ReadBuf, net::UnixDatagram};

/// How often an occupied lock file is tried again, a ms apart: whoever removes the files of a dead
/// session holds it for a moment.
const TRIES: u32 = 100;

/// The folder of the sessions.
#[derive(Clone, Debug)]
pub(super) struct Folder {
    fd: Arc<OwnedFd>,
    identity: Identity,
}

/// One session of this process.
#[derive(Debug)]
pub(super) struct Session {
    id: SessionId,
    folder: Folder,
    /// None once it is closed. To close it ends the session for all others.
    file: Option<Unforked<OwnedFd>>,
    socket: Option<Unforked<UnixDatagram>>,
    /// Does [`own`] know of it?
    noted: bool,
}

/// Why nobody sees that a session lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hidden {
    /// This process is a forked child of the session's; or the session was closed.
    Forked,
    /// Its file was deleted.
    Deleted,
}

impl Folder {
    pub(super) fn new(fd: OwnedFd) -> Option<Folder> {
        let identity = identity_of(&fd)?;
        Some(Folder { fd: Arc::new(fd), identity })
    }

    /// Is the session alive? What cannot be found out counts as alive: silence is no proof (R18).
    pub(super) fn alive(&self, id: &SessionId) -> bool {
        if check(id).is_err() {
            return false;
        }
        // Held while the file is open here: a session of this process that began meanwhile would
        // lose its lock when it is closed.
        let own = own::hold();
        if own.has(self.identity, id) {
            return true;
        }
        match self.open(id, OFlags::RDONLY) {
            Ok(file) => {
                let asked = Flock::from(FlockType::WriteLock);
                rustix::process::fcntl_getlk(&file, &asked).map_or(true, |lock| lock.is_some())
            }
            Err(error) => error != Errno::NOENT,
        }
    }

    /// Removes what a dead session left in the folder (G9). Does nothing to a living one.
    pub(super) fn remove_dead(&self, id: &SessionId) {
        if check(id).is_err() {
            return;
        }
        let own = own::hold();
        if own.has(self.identity, id) {
            return;
        }
        // Under its own lock: a session that begins meanwhile either finds it taken, and tries
        // again, or holds it first.
        let Ok(file) = self.open(id, OFlags::RDWR | OFlags::CREATE) else { return };
        if lock(&file).is_ok() && identity_at(&self.fd, id.as_str()) == identity_of(&file) {
            // The socket first: as long as the file is there, someone will come by again.
            let _ = rustix::fs::unlinkat(&*self.fd, socket_name(id), AtFlags::empty());
            let _ = rustix::fs::unlinkat(&*self.fd, id.as_str(), AtFlags::empty());
        }
    }

    /// The sessions that have a file, `most` at most.
    pub(super) fn sessions(&self, most: usize) -> io::Result<Vec<SessionId>> {
        let mut found = Vec::new();
        for entry in fs::read_dir(self.path("."))?.take(2 * most) {
            let name = entry?.file_name();
            let Some(name) = name.to_str() else { continue };
            let id = SessionId::new(name.strip_suffix(SOCKET_SUFFIX).unwrap_or(name));
            if check(&id).is_ok() && !found.contains(&id) {
                found.push(id);
            }
        }
        Ok(found)
    }

    /// The path of a file in the folder that is always short enough for a socket's address.
    fn path(&self, name: &str) -> PathBuf {
        Path::new("/proc/self/fd").join(self.fd.as_raw_fd().to_string()).join(name)
    }

    fn open(&self, id: &SessionId, flags: OFlags) -> Result<OwnedFd, Errno> {
        let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        rustix::fs::openat(&*self.fd, id.as_str(), flags, Mode::RUSR | Mode::WUSR)
    }
}

impl Session {
    /// Begins a session: from here on it is alive for everyone.
    pub(super) async fn open(
        id: &SessionId,
        folder: &Folder,
        place: &Place,
    ) -> Result<Session, StoreError> {
        check(id)?;
        if !own::hold().add(folder.identity, id) {
            let detail = format!("the session {id} is connected already");
            return Err(place.unavailable(Trouble::Protocol, detail));
        }
        // From here on its drop cleans up.
        let mut session = Session {
            id: id.clone(),
            folder: folder.clone(),
            file: None,
            socket: None,
            noted: true,
        };
        for _ in 0..TRIES {
            if session.lock(place)? {
                session.bind().map_err(|error| {
                    from_io(place, "make the socket", Path::new(&socket_name(id)), &error)
                })?;
                return Ok(session);
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let detail = format!("another process is connected as the session {id}");
        Err(place.unavailable(Trouble::Protocol, detail))
    }

    /// False: someone removes the files of a session of this id, or lives under it.
    fn lock(&mut self, place: &Place) -> Result<bool, StoreError> {
        let name = Path::new(self.id.as_str());
        let opened = self.folder.open(&self.id, OFlags::RDWR | OFlags::CREATE);
        let file = opened.map_err(|error| from_io(place, "make", name, &error.into()))?;
        match lock(&file) {
            Ok(()) => {}
            Err(Errno::AGAIN | Errno::ACCESS) => return Ok(false),
            Err(error) => return Err(from_io(place, "lock", name, &error.into())),
        }
        // It may have been removed between the two: then nobody would see the lock.
        if identity_at(&self.folder.fd, self.id.as_str()) != identity_of(&file) {
            return Ok(false);
        }
        self.file = Some(Unforked::new(file));
        Ok(true)
    }

    fn bind(&mut self) -> io::Result<()> {
        let path = self.folder.path(&socket_name(&self.id));
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        self.socket = Some(Unforked::new(UnixDatagram::bind(&path)?));
        Ok(())
    }

    pub(super) fn id(&self) -> &SessionId {
        &self.id
    }

    pub(super) fn folder(&self) -> &Folder {
        &self.folder
    }

    /// Do the others see that it lives? Not if its file was deleted, nor in a forked child.
    pub(super) fn visible(&self) -> Result<(), Hidden> {
        let file = self.file.as_ref().and_then(Unforked::get).ok_or(Hidden::Forked)?;
        identity_of(file).map(|_| ()).ok_or(Hidden::Deleted)
    }

    /// Takes hints from the socket. Ready: there was one at least, and none is left; there may be
    /// messages. Pending: the task is woken by the next one.
    pub(super) fn poll_hints(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Some(socket) = self.socket.as_ref().and_then(Unforked::get) else {
            return Poll::Pending;
        };
        let mut some = false;
        loop {
            let mut bytes = [0; 8];
            match socket.poll_recv(cx, &mut ReadBuf::new(&mut bytes)) {
                Poll::Ready(Ok(())) => some = true,
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending if some => return Poll::Ready(Ok(())),
                Poll::Pending => return Poll::Pending,
            }
        }
    }

    /// Tells another session that there are messages for it. A hint only: where its queue is full
    /// it has one to read anyway, and where it is gone nobody misses it.
    pub(super) fn hint(&self, to: &SessionId) {
        let Some(socket) = self.socket.as_ref().and_then(Unforked::get) else { return };
        if let Ok(address) = SocketAddrUnix::new(self.folder.path(&socket_name(to))) {
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            let _ = rustix::net::sendto(socket, b"!", flags, &address);
        }
    }

    /// Ends the session, if it has not ended. Its files go first, then its lock.
    pub(super) fn close(&mut self) {
        let (socket, file) = (self.socket.take(), self.file.take());
        let mut own = own::hold();
        // Not in a forked child: there the files are the parent's.
        let remove = |name: &str| {
            let _ = rustix::fs::unlinkat(&*self.folder.fd, name, AtFlags::empty());
        };
        if socket.as_ref().is_some_and(|socket| socket.get().is_some()) {
            remove(&socket_name(&self.id));
        }
        if file.as_ref().is_some_and(|file| file.get().is_some()) {
            remove(self.id.as_str());
        }
        drop(file);
        if std::mem::take(&mut self.noted) {
            own.remove(self.folder.identity, &self.id);
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.close();
    }
}

const SOCKET_SUFFIX: &str = ".sock";

fn socket_name(id: &SessionId) -> String {
    format!("{id}{SOCKET_SUFFIX}")
}

fn lock(file: &OwnedFd) -> Result<(), Errno> {
    rustix::fs::fcntl_lock(file, FlockOperation::NonBlockingLockExclusive)
}

/// An id becomes a file's name here.
fn check(id: &SessionId) -> Result<(), StoreError> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    let text = id.as_str();
    if (1..=64).contains(&text.len()) && text.bytes().all(plain) {
        return Ok(());
    }
    let detail = format!(
        "the file store takes session ids of 1 to 64 letters, digits, `-` and `_`, not {text:?}"
    );
    Err(StoreError::Invalid { detail })
}
