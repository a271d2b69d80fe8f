//! Opening what a server listens on: a TCP port or a Unix socket, and the TLS keys.

use std::io;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener, UnixStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{ServerConfig, version};

use crate::config::{ConfigError, Listen, TlsFiles};

/// Why a server did not start.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// It must not.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The address or socket cannot be had.
    #[error("cannot listen on {at}: {error}")]
    Listen {
        /// Where.
        at: String,
        /// Why.
        error: io::Error,
    },
    /// Others could reach the socket.
    #[error("{} is open to others: chmod 700 it, or choose another folder for the socket", .0.display())]
    OpenFolder(PathBuf),
    /// Somebody serves there.
    #[error("{} is served by another process: stop it, or choose another path", .0.display())]
    InUse(PathBuf),
    /// Something else is there.
    #[error("{} is not a socket: move it away, or choose another path", .0.display())]
    NotASocket(PathBuf),
    /// The certificate or key cannot be used.
    #[error("the TLS files cannot be used ({what}): {why}")]
    Tls {
        /// Which.
        what: String,
        /// Why.
        why: String,
    },
}

/// A connection of either kind.
pub(crate) trait Wire: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> Wire for S {}

/// What is listened on.
pub(crate) enum Listener {
    Tcp(TcpListener),
    Unix { listener: UnixListener, path: PathBuf, inode: (u64, u64) },
}

impl Listener {
    pub(crate) async fn bind(listen: &Listen) -> Result<Self, ServeError> {
        match listen {
            Listen::Tcp(address) => {
                let failed = |error| ServeError::Listen { at: address.to_string(), error };
                Ok(Self::Tcp(TcpListener::bind(address).await.map_err(failed)?))
            }
            Listen::Unix(path) => bind_unix(path).await,
        }
    }

    /// Where it listens, with the port that was found.
    pub(crate) fn local(&self) -> Result<Listen, ServeError> {
        match self {
            Self::Tcp(listener) => {
                let failed = |error| ServeError::Listen { at: "a TCP port".to_owned(), error };
                listener.local_addr().map(Listen::Tcp).map_err(failed)
            }
            Self::Unix { path, .. } => Ok(Listen::Unix(path.clone())),
        }
    }

    pub(crate) async fn accept(&self) -> io::Result<Box<dyn Wire>> {
        match self {
            Self::Tcp(listener) => {
                let (stream, _) = listener.accept().await?;
                // Small answers go out at once.
                let _ = stream.set_nodelay(true);
                Ok(Box::new(stream))
            }
            Self::Unix { listener, .. } => Ok(Box::new(listener.accept().await?.0)),
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Self::Unix { path, inode, .. } = self
            && std::fs::symlink_metadata(&*path).is_ok_and(|there| (there.dev(), there.ino()) == *inode)
        {
            let _ = std::fs::remove_file(path);
        }
    }
}

async fn bind_unix(path: &Path) -> Result<Listener, ServeError> {
    let failed = |error| ServeError::Listen { at: path.display().to_string(), error };
    // The folder is what keeps others out in the moment between bind and chmod.
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if std::fs::metadata(folder).map_err(failed)?.mode() & 0o077 != 0 {
        return Err(ServeError::OpenFolder(folder.to_owned()));
    }
    match std::fs::symlink_metadata(path) {
        Ok(there) if !there.file_type().is_socket() => return Err(ServeError::NotASocket(path.to_owned())),
        Ok(_) if UnixStream::connect(path).await.is_ok() => return Err(ServeError::InUse(path.to_owned())),
        // Left behind by a process that was killed.
        Ok(_) => std::fs::remove_file(path).map_err(failed)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(failed(error)),
    }
    let listener = UnixListener::bind(path).map_err(failed)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).map_err(failed)?;
    let bound = std::fs::symlink_metadata(path).map_err(failed)?;
    Ok(Listener::Unix { listener, path: path.to_owned(), inode: (bound.dev(), bound.ino()) })
}

/// TLS 1.3, as CHAP requires (SPECIFICATION §14.1), with HTTP/1.1.
pub(crate) fn tls(files: &TlsFiles) -> Result<TlsAcceptor, ServeError> {
    let failed = |path: &Path, why: String| ServeError::Tls { what: path.display().to_string(), why };
    let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_file_iter(&files.certificates)
        .and_then(Iterator::collect)
        .map_err(|error| failed(&files.certificates, error.to_string()))?;
    let key =
        PrivateKeyDer::from_pem_file(&files.key).map_err(|error| failed(&files.key, error.to_string()))?;
    let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_protocol_versions(&[&version::TLS13])
        .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, key))
        .map_err(|error| failed(&files.certificates, error.to_string()))?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_socket_is_private_replaces_a_dead_one_and_goes_with_its_listener() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o700)).unwrap();
        let path = dir.path().join("chap.sock");
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        let listener = Listener::bind(&Listen::Unix(path.clone())).await.unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        let again = Listener::bind(&Listen::Unix(path.clone())).await;
        assert!(matches!(again, Err(ServeError::InUse(_))));
        drop(listener);
        assert!(!path.exists());
        std::fs::write(&path, "a file").unwrap();
        let file = Listener::bind(&Listen::Unix(path.clone())).await;
        assert!(matches!(file, Err(ServeError::NotASocket(_))));
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        let open = Listener::bind(&Listen::Unix(path)).await.err().unwrap().to_string();
        assert!(open.contains("chmod 700"), "{open}");
    }

    #[test]
    fn tls_files_that_are_missing_or_not_pem_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let files = TlsFiles { certificates: dir.path().join("c.pem"), key: dir.path().join("k.pem") };
        let missing = tls(&files).err().unwrap().to_string();
        assert!(missing.contains("c.pem"), "{missing}");
        std::fs::write(&files.certificates, "not pem").unwrap();
        std::fs::write(&files.key, "not pem").unwrap();
        assert!(matches!(tls(&files), Err(ServeError::Tls { .. })));
    }
}
