//! Where a link's stream comes from: a Unix socket that only its owner can reach, or TCP under TLS. Behind this file
//! both are two boxed halves.

use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use choir_messages::chain::Digest;
use choir_messages::wire::LinkAddress;
use rustls::pki_types::ServerName;
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::time::timeout;
use tokio_rustls::{TlsAcceptor, TlsConnector};

use crate::frames::{Reader, Writer};
use crate::limits::TLS_HANDSHAKE;
use crate::reason::CloseReason;
use crate::tls::{self, Certificate};

/// Longest path of a Unix socket, in bytes: the size of `sun_path` without its end.
const SOCKET_PATH: usize = 107;

/// Where a host listens.
#[derive(Clone)]
pub enum ListenAt {
    /// A Unix socket. Its folder is made with mode 0700 or must have it; the socket gets 0600.
    Unix(PathBuf),
    /// TCP with TLS; there is no TCP without.
    Tcp {
        /// Address and port.
        addr: SocketAddr,
        /// Who the host is.
        certificate: Certificate,
    },
}

impl std::fmt::Debug for ListenAt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Tcp { addr, .. } => write!(f, "tcp+tls:{addr}"),
        }
    }
}

/// Where an agent finds its host.
#[derive(Clone)]
pub enum Target {
    /// A Unix socket.
    Unix(PathBuf),
    /// TCP with TLS.
    Tcp {
        /// Address and port.
        addr: SocketAddr,
        /// Digest of the one certificate that is the host's ([`Certificate::digest`]).
        certificate: Digest,
    },
}

impl std::fmt::Debug for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Tcp { addr, .. } => write!(f, "tcp+tls:{addr}"),
        }
    }
}

impl From<LinkAddress> for Target {
    fn from(address: LinkAddress) -> Self {
        match address {
            LinkAddress::Unix { socket } => Self::Unix(socket),
            LinkAddress::Tcp { address, certificate } => Self::Tcp { addr: address, certificate },
        }
    }
}

/// Why there is no listening socket.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// The path does not fit into a socket address.
    #[error(
        "{} has {} bytes, a Unix socket's path at most {SOCKET_PATH}; choose a state folder with a shorter path",
        .0.display(),
        .0.as_os_str().len()
    )]
    PathTooLong(PathBuf),
    /// Others can reach into the folder.
    #[error("{} is open to other users (mode {mode:o}); run: chmod 700 {}", .folder.display(), .folder.display())]
    OpenFolder {
        /// The folder.
        folder: PathBuf,
        /// Its mode.
        mode: u32,
    },
    /// The path is taken by something that is not a socket.
    #[error("{} exists and is not a socket; move it away", .0.display())]
    NotASocket(PathBuf),
    /// Somebody listens there.
    #[error("another process listens on {}; is a second choird running?", .0.display())]
    InUse(PathBuf),
    /// The system refused.
    #[error("cannot listen on {at}: {error}")]
    Io {
        /// Where.
        at: String,
        /// What the system says.
        error: io::Error,
    },
}

/// What is known of a peer without asking it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PeerInfo {
    /// Process id of a Unix peer when it connected, as the kernel says; absent across process namespaces.
    pub pid: Option<i32>,
    /// Its user.
    pub uid: Option<u32>,
    /// Address of a TCP peer.
    pub addr: Option<SocketAddr>,
}

/// A listening socket; a Unix one removes its file when dropped.
pub(crate) enum Acceptor {
    Unix { listener: UnixListener, path: PathBuf, inode: (u64, u64) },
    Tcp { listener: TcpListener, tls: TlsAcceptor },
}

/// A connection before TLS.
pub(crate) enum Raw {
    Unix(UnixStream),
    Tcp(TcpStream, TlsAcceptor),
}

/// A connection whose bytes can be read.
pub(crate) struct Stream {
    pub(crate) reader: Reader,
    pub(crate) writer: Writer,
}

fn halves_unix(stream: UnixStream) -> Stream {
    let (reader, writer) = stream.into_split();
    Stream { reader: Box::new(reader), writer: Box::new(writer) }
}

fn halves<S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + 'static>(stream: S) -> Stream {
    let (reader, writer) = tokio::io::split(stream);
    Stream { reader: Box::new(reader), writer: Box::new(writer) }
}

impl Acceptor {
    pub(crate) async fn bind(at: &ListenAt) -> Result<Self, ListenError> {
        let failed = |error| ListenError::Io { at: format!("{at:?}"), error };
        match at {
            ListenAt::Unix(path) => bind_unix(path).await,
            ListenAt::Tcp { addr, certificate } => {
                let listener = TcpListener::bind(addr).await.map_err(failed)?;
                Ok(Self::Tcp { listener, tls: TlsAcceptor::from(certificate.server()) })
            }
        }
    }

    /// The address of a TCP socket, with the port the system chose.
    pub(crate) fn addr(&self) -> Option<SocketAddr> {
        match self {
            Self::Unix { .. } => None,
            Self::Tcp { listener, .. } => listener.local_addr().ok(),
        }
    }

    pub(crate) async fn accept(&self) -> io::Result<(Raw, PeerInfo)> {
        match self {
            Self::Unix { listener, .. } => {
                let (stream, _) = listener.accept().await?;
                let cred = stream.peer_cred().ok();
                let info = PeerInfo {
                    pid: cred.and_then(|c| c.pid()).filter(|pid| *pid > 0),
                    uid: cred.map(|c| c.uid()),
                    addr: None,
                };
                Ok((Raw::Unix(stream), info))
            }
            Self::Tcp { listener, tls } => {
                let (stream, addr) = listener.accept().await?;
                Ok((Raw::Tcp(stream, tls.clone()), PeerInfo { addr: Some(addr), ..PeerInfo::default() }))
            }
        }
    }
}

impl Drop for Acceptor {
    fn drop(&mut self) {
        if let Self::Unix { path, inode, .. } = self {
            // Only if it is still ours: a successor may have bound the same path.
            if std::fs::symlink_metadata(&*path).is_ok_and(|m| (m.dev(), m.ino()) == *inode) {
                let _ = std::fs::remove_file(path);
            }
        }
    }
}

impl Raw {
    /// TLS, where there is TLS, under its deadline.
    pub(crate) async fn open(self) -> Result<Stream, CloseReason> {
        match self {
            Self::Unix(stream) => Ok(halves_unix(stream)),
            Self::Tcp(stream, tls) => {
                stream.set_nodelay(true)?;
                match timeout(TLS_HANDSHAKE, tls.accept(stream)).await {
                    Ok(Ok(stream)) => Ok(halves(stream)),
                    Ok(Err(_)) => Err(CloseReason::Tls),
                    Err(_) => Err(CloseReason::HandshakeDeadline),
                }
            }
        }
    }
}

async fn bind_unix(path: &Path) -> Result<Acceptor, ListenError> {
    let failed = |error| ListenError::Io { at: path.display().to_string(), error };
    if path.as_os_str().len() > SOCKET_PATH {
        return Err(ListenError::PathTooLong(path.to_owned()));
    }
    if let Some(folder) = path.parent().filter(|p| !p.as_os_str().is_empty()) {
        private_folder(folder)?;
    }
    match std::fs::symlink_metadata(path) {
        Ok(there) if !there.file_type().is_socket() => {
            return Err(ListenError::NotASocket(path.to_owned()));
        }
        Ok(_) => {
            if UnixStream::connect(path).await.is_ok() {
                return Err(ListenError::InUse(path.to_owned()));
            }
            // Left behind by a process that was killed.
            std::fs::remove_file(path).map_err(failed)?;
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(failed(error)),
    }
    let listener = UnixListener::bind(path).map_err(failed)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).map_err(failed)?;
    let bound = std::fs::symlink_metadata(path).map_err(failed)?;
    Ok(Acceptor::Unix { listener, path: path.to_owned(), inode: (bound.dev(), bound.ino()) })
}

fn private_folder(folder: &Path) -> Result<(), ListenError> {
    let failed = |error| ListenError::Io { at: folder.display().to_string(), error };
    match std::fs::metadata(folder) {
        Ok(there) => {
            let mode = there.mode() & 0o777;
            if mode & 0o077 == 0 {
                Ok(())
            } else {
                Err(ListenError::OpenFolder { folder: folder.to_owned(), mode })
            }
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(failed)
        }
        Err(error) => Err(failed(error)),
    }
}

/// Why a target could not be reached.
pub(crate) enum DialError {
    Io(io::Error),
    Tls(io::Error),
}

/// Connects; the caller sets the deadline.
pub(crate) async fn dial(target: &Target) -> Result<Stream, DialError> {
    match target {
        Target::Unix(path) => UnixStream::connect(path).await.map(halves_unix).map_err(DialError::Io),
        Target::Tcp { addr, certificate } => {
            let stream = TcpStream::connect(addr).await.map_err(DialError::Io)?;
            stream.set_nodelay(true).map_err(DialError::Io)?;
            let tls = tls::client(*certificate).map_err(|error| DialError::Tls(io::Error::other(error)))?;
            // A name must be given; none is sent and none is checked.
            let name = ServerName::IpAddress(addr.ip().into());
            TlsConnector::from(tls).connect(name, stream).await.map(halves).map_err(DialError::Tls)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn private() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o700)).unwrap();
        dir
    }

    fn at(folder: &Path) -> ListenAt {
        ListenAt::Unix(folder.join("link.sock"))
    }

    #[tokio::test]
    async fn only_its_owner_can_reach_a_socket_and_its_file_goes_with_it() {
        let dir = private();
        let folder = dir.path().join("new");
        let acceptor = Acceptor::bind(&at(&folder)).await.unwrap();
        let mode = |p: &Path| std::fs::metadata(p).unwrap().mode() & 0o777;
        assert_eq!((mode(&folder), mode(&folder.join("link.sock"))), (0o700, 0o600));
        drop(acceptor);
        assert!(!folder.join("link.sock").exists());
    }

    #[tokio::test]
    async fn a_socket_left_behind_is_replaced_and_a_living_one_is_not() {
        let dir = private();
        drop(std::os::unix::net::UnixListener::bind(dir.path().join("link.sock")).unwrap());
        let living = Acceptor::bind(&at(dir.path())).await.unwrap();
        assert!(matches!(Acceptor::bind(&at(dir.path())).await, Err(ListenError::InUse(_))));
        drop(living);
    }

    #[tokio::test]
    async fn what_is_not_private_or_not_a_socket_is_refused_with_the_next_step() {
        let dir = private();
        let open = dir.path().join("open");
        std::fs::create_dir(&open).unwrap();
        std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o755)).unwrap();
        let error = Acceptor::bind(&at(&open)).await.err().unwrap().to_string();
        assert!(error.contains("chmod 700"), "{error}");
        std::fs::write(dir.path().join("link.sock"), "a file").unwrap();
        assert!(matches!(Acceptor::bind(&at(dir.path())).await, Err(ListenError::NotASocket(_))));
        let long = ListenAt::Unix(dir.path().join("x".repeat(120)));
        assert!(matches!(Acceptor::bind(&long).await, Err(ListenError::PathTooLong(_))));
    }
}
