//! Who a host is over TCP: one self-signed certificate, made for one run of it and known by its digest. No authority
//! vouches for it, no name is checked and no clock is asked: the digest reaches the agent by the same private way as the
//! link's secret, and stands for exactly that certificate. TLS 1.3 only, without tickets, so that every link proves
//! everything anew.

use std::sync::Arc;

use choir_messages::chain::Digest;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName, UnixTime};
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, Error, ServerConfig, SignatureScheme};
use subtle::ConstantTimeEq;

/// A host's certificate with its key, ready to be listened with. Clones share the key; it is never printed.
#[derive(Clone)]
pub struct Certificate {
    digest: Digest,
    server: Arc<ServerConfig>,
}

/// Why a certificate cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the link's certificate cannot be used: {0}")]
pub struct UnusableCertificate(String);

impl Certificate {
    /// From a self-signed certificate (DER) and its private key (PKCS #8, DER).
    pub fn new(certificate: &[u8], key: &[u8]) -> Result<Self, UnusableCertificate> {
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.to_vec()));
        let chain = vec![CertificateDer::from(certificate.to_vec())];
        let unusable = |error: Error| UnusableCertificate(error.to_string());
        let mut server = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(unusable)?
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .map_err(unusable)?;
        server.send_tls13_tickets = 0;
        Ok(Self { digest: Digest::of(certificate), server: Arc::new(server) })
    }

    /// What an agent recognises it by: SHA-256 of the certificate's DER. No secret.
    #[must_use]
    pub const fn digest(&self) -> Digest {
        self.digest
    }

    pub(crate) fn server(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.server)
    }
}

impl std::fmt::Debug for Certificate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Certificate").field(&self.digest).finish()
    }
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// A client that speaks to the holder of this one certificate and to nobody else.
pub(crate) fn client(certificate: Digest) -> Result<Arc<ClientConfig>, Error> {
    let provider = provider();
    let pinned = Arc::new(Pinned { certificate, provider: Arc::clone(&provider) });
    let mut client = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(pinned)
        .with_no_client_auth();
    // There is no name to send: who the host is follows from its certificate.
    client.enable_sni = false;
    client.resumption = rustls::client::Resumption::disabled();
    Ok(Arc::new(client))
}

/// Accepts one certificate. That its holder has the key is still proved by the handshake's signature.
#[derive(Debug)]
struct Pinned {
    certificate: Digest,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let shown = Digest::of(end_entity);
        let same: bool = shown.bytes().ct_eq(self.certificate.bytes()).into();
        if same && intermediates.is_empty() {
            Ok(ServerCertVerified::assertion())
        } else {
            Err(Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure))
        }
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(Error::General("TLS 1.2 is not spoken on a link".to_owned()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signed, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made() -> (Vec<u8>, Vec<u8>) {
        let made = rcgen::generate_simple_self_signed(vec!["choird".to_owned()]).unwrap();
        (made.cert.der().to_vec(), made.signing_key.serialize_der())
    }

    /// Lets two ends shake hands in memory.
    async fn meet(certificate: &Certificate, pin: Digest) -> (bool, std::io::Result<()>) {
        let (near, far) = tokio::io::duplex(16 * 1024);
        let acceptor = tokio_rustls::TlsAcceptor::from(certificate.server());
        let connector = tokio_rustls::TlsConnector::from(client(pin).unwrap());
        let name = ServerName::try_from("127.0.0.1").unwrap();
        let (host, agent) = tokio::join!(acceptor.accept(near), connector.connect(name, far));
        (host.is_ok(), agent.map(drop))
    }

    #[tokio::test]
    async fn only_the_holder_of_the_pinned_certificate_is_spoken_to() {
        let (der, key) = made();
        let certificate = Certificate::new(&der, &key).unwrap();
        assert_eq!(certificate.digest(), Digest::of(&der));
        let (host, agent) = meet(&certificate, certificate.digest()).await;
        assert!(host && agent.is_ok(), "{agent:?}");
        let (host, agent) = meet(&certificate, Digest::of(b"another")).await;
        assert!(!host, "the host heard the agent's alert");
        assert!(agent.unwrap_err().to_string().contains("certificate"));
    }

    #[tokio::test]
    async fn a_certificate_shown_without_its_key_is_not_believed() {
        let (der, _) = made();
        let (_, other) = made();
        // A server that shows one certificate and signs with the key of another.
        let signer = rustls::crypto::ring::sign::any_supported_type(&PrivateKeyDer::from(
            PrivatePkcs8KeyDer::from(other),
        ))
        .unwrap();
        let key = rustls::sign::CertifiedKey::new(vec![CertificateDer::from(der.clone())], signer);
        let server = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap()
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(rustls::sign::SingleCertAndKey::from(key)));
        let thief = Certificate { digest: Digest::of(&der), server: Arc::new(server) };
        let (_, agent) = meet(&thief, Digest::of(&der)).await;
        assert!(agent.is_err());
    }

    #[test]
    fn what_is_no_certificate_or_not_its_key_is_refused() {
        let (der, key) = made();
        assert!(Certificate::new(b"not one", &key).is_err());
        assert!(Certificate::new(&der, b"not one").is_err());
        assert!(Certificate::new(&der, &made().1).is_err());
    }

    #[test]
    fn a_key_is_never_printed() {
        let (der, key) = made();
        let certificate = Certificate::new(&der, &key).unwrap();
        let shown = format!("{certificate:?}");
        assert_eq!(shown, format!("Certificate({:?})", Digest::of(&der)));
    }
}
