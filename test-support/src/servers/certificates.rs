//! A private certificate authority and certificates signed by it, created on demand with `openssl`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use super::reserved;

const CONFIG: &str = "\
[req]
distinguished_name = subject
prompt = no
[subject]
CN = duly test
[authority]
basicConstraints = critical, CA:TRUE
keyUsage = critical, keyCertSign
[server]
basicConstraints = CA:FALSE
extendedKeyUsage = serverAuth
subjectAltName = DNS:localhost, IP:127.0.0.1
[client]
basicConstraints = CA:FALSE
extendedKeyUsage = clientAuth
";

/// The certificates of this process, made once.
pub fn certificates() -> &'static Certificates {
    static SHARED: OnceLock<Certificates> = OnceLock::new();
    SHARED.get_or_init(Certificates::make)
}

/// PEM files: `ca.crt`, and `.crt` and `.key` of `server` and `client`, signed by the authority. Valid for two days.
///
/// The server certificate is for `localhost` and 127.0.0.1.
#[derive(Clone, Debug)]
pub struct Certificates(PathBuf);

impl Certificates {
    /// Creates a new authority. Certificates of one authority are not trusted by another.
    pub fn make() -> Certificates {
        let directory = reserved::directory();
        fs::write(directory.join("openssl.cnf"), CONFIG).expect("a file in a directory of ours");
        let certificates = Certificates(directory);
        certificates.sign("ca", "authority", &[]);
        let signer = ["-CA", "ca.crt", "-CAkey", "ca.key"];
        certificates.sign("server", "server", &signer);
        certificates.sign("client", "client", &signer);
        certificates
    }

    /// The path of one of the files.
    pub fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    fn sign(&self, name: &str, section: &str, signer: &[&str]) {
        let (key, crt) = (format!("{name}.key"), format!("{name}.crt"));
        let mut openssl = Command::new("openssl");
        openssl.current_dir(&self.0).args(["req", "-x509", "-config", "openssl.cnf", "-extensions", section]);
        openssl.args(["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-noenc", "-days", "2"]);
        openssl.args(["-keyout", &key, "-out", &crt, "-subj", &format!("/CN=duly test {name}")]).args(signer);
        let output =
            openssl.output().unwrap_or_else(|error| panic!("openssl: {error}. Install it with: ./check stores"));
        assert!(output.status.success(), "openssl: {}", String::from_utf8_lossy(&output.stderr));
    }
}

impl AsRef<Path> for Certificates {
    fn as_ref(&self) -> &Path {
        &self.0
    }
}
