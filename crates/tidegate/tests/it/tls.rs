//! Connections to a PostgreSQL server that requires TLS, with certificates made here.

use std::path::Path;

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use tidegate::{ErrorKind, EventQueue, NewEvent};
use tidegate_testing::{PgServer, PgSettings};

use crate::support::{eventually, soon};

/// A certificate authority of the test's own.
struct Authority {
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    fn new(name: &str) -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().unwrap();
        Self { pem: params.self_signed(&key).unwrap().pem(), issuer: Issuer::new(params, key) }
    }

    /// A certificate and its key, as PEM.
    fn sign(&self, common_name: &str, names: &[&str]) -> (String, String) {
        let names: Vec<String> = names.iter().map(ToString::to_string).collect();
        let mut params = CertificateParams::new(names).unwrap();
        params.distinguished_name.push(DnType::CommonName, common_name);
        let key = KeyPair::generate().unwrap();
        (params.signed_by(&key, &self.issuer).unwrap().pem(), key.serialize_pem())
    }
}

/// A server whose certificate names `localhost`. Its database `open` accepts every TLS connection, `closed` only those
/// with a client certificate; plain TCP is refused.
struct Guarded {
    server: PgServer,
    files: tempfile::TempDir,
}

impl Guarded {
    fn start() -> Self {
        let server = PgServer::start(PgSettings { fsync: false, ..PgSettings::default() }).unwrap();
        let (ours, theirs) = (Authority::new("ours"), Authority::new("theirs"));
        let files = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(files.path().join(name), text).unwrap();
        let (certificate, key) = ours.sign("tidegate", &[]);
        let (foreign_certificate, foreign_key) = theirs.sign("tidegate", &[]);
        write("root.pem", &ours.pem);
        write("other.pem", &theirs.pem);
        write("client.pem", &certificate);
        write("client.key", &key);
        write("foreign.pem", &foreign_certificate);
        write("foreign.key", &foreign_key);
        let data = server.folder().join("data");
        let (certificate, key) = ours.sign("the server", &["localhost"]);
        own(&data, "server.crt", &certificate);
        own(&data, "server.key", &key);
        own(&data, "root.crt", &ours.pem);
        let guarded = Self { server, files };
        for statement in [
            "CREATE DATABASE open",
            "CREATE DATABASE closed",
            "ALTER SYSTEM SET ssl = 'on'",
            "ALTER SYSTEM SET ssl_ca_file = 'root.crt'",
        ] {
            guarded.psql(statement);
        }
        own(&data, "pg_hba.conf", "local all all trust\nhostssl open all all trust\nhostssl closed all all cert\n");
        guarded.psql("SELECT pg_reload_conf()");
        guarded
    }

    /// Runs a statement over the Unix socket, which needs no TLS.
    fn psql(&self, statement: &str) -> String {
        let output = std::process::Command::new(self.server.program("psql"))
            .args(["-X", "-A", "-t", "-U", "tidegate", "-d", "postgres", "-p", &self.server.port().to_string(), "-h"])
            .arg(self.server.folder())
            .args(["-c", statement])
            .output()
            .unwrap();
        assert!(output.status.success(), "{statement}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    /// A URL of one of its databases; `@name` in the parameters stands for a file.
    fn url(&self, host: &str, database: &str, parameters: &str) -> String {
        let parameters = parameters.replace('@', &format!("{}/", self.files.path().display()));
        format!("postgres://tidegate@{host}:{}/{database}?{parameters}", self.server.port())
    }

    async fn accepted(&self, host: &str, database: &str, parameters: &str) -> EventQueue {
        let opened = soon(parameters, EventQueue::open(self.url(host, database, parameters))).await;
        opened.unwrap_or_else(|error| panic!("{host} {database} {parameters}: {error}"))
    }

    /// Opens a queue, which must be refused, and returns the error.
    async fn refused(&self, host: &str, database: &str, parameters: &str) -> String {
        let error = soon(parameters, EventQueue::open(self.url(host, database, parameters))).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{host} {database} {parameters}: {error}");
        error.to_string()
    }
}

/// Writes a file that only the server may read.
fn own(data: &Path, name: &str, text: &str) {
    use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
    let (path, folder) = (data.join(name), std::fs::metadata(data).unwrap());
    std::fs::write(&path, text).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    chown(&path, Some(folder.uid()), Some(folder.gid())).unwrap();
}

async fn guarded() -> Guarded {
    let guarded = tokio::task::spawn_blocking(Guarded::start).await.unwrap();
    let url = guarded.url("127.0.0.1", "open", "sslmode=disable");
    eventually("the server has read its new rules", || async {
        EventQueue::open(&url).await.is_err_and(|error| error.kind() == ErrorKind::Invalid)
    })
    .await;
    guarded
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_asks_for_tls_gets_it_on_every_connection() {
    let server = guarded().await;
    let queue = server.accepted("localhost", "open", "sslmode=verify-full&sslrootcert=@root.pem").await;
    let id = soon("a publish", queue.publish(NewEvent::new("t", "{}"))).await.unwrap();
    let claimed = soon("a claim", queue.consumer().poll_many(1)).await.unwrap();
    assert_eq!(claimed.len(), 1);
    assert_eq!(claimed[0].id, id.id);
    let ours = "FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE datname = 'open'";
    eventually("the listening connection is there", || async {
        let listening = "(query LIKE '%LISTEN%' OR query LIKE '%pg_notify%') AND pid <> pg_backend_pid()";
        server.psql(&format!("SELECT count(*) {ours} AND {listening}")) != "0"
    })
    .await;
    assert_eq!(server.psql(&format!("SELECT bool_and(ssl) {ours}")), "t");
    drop(claimed);
    queue.close().await;
    for parameters in ["", "sslmode=prefer", "sslmode=require", "sslmode=require&sslrootcert=@root.pem"] {
        let queue = server.accepted("localhost", "open", parameters).await;
        assert_eq!(server.psql(&format!("SELECT bool_and(ssl) {ours}")), "t", "{parameters}");
        queue.close().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_not_the_one_meant_is_refused() {
    let server = guarded().await;
    for mode in ["require", "verify-ca", "verify-full"] {
        let said = server.refused("localhost", "open", &format!("sslmode={mode}&sslrootcert=@other.pem")).await;
        assert!(said.contains("sslrootcert"), "{mode}: {said}");
    }
    // Without `sslrootcert` the machine's roots apply, and none of them signed this certificate.
    let said = server.refused("localhost", "open", "sslmode=verify-full").await;
    assert!(said.contains("sslrootcert"), "{said}");
    let said = server.refused("127.0.0.1", "open", "sslmode=verify-full&sslrootcert=@root.pem").await;
    assert!(said.contains("another name"), "{said}");
    server.accepted("127.0.0.1", "open", "sslmode=verify-ca&sslrootcert=@root.pem").await.close().await;
    let said = server.refused("localhost", "open", "sslmode=disable").await;
    assert!(said.contains("refuses connections without TLS") && said.contains("sslmode="), "{said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_certificate_opens_what_asks_for_one() {
    let server = guarded().await;
    let rooted = "sslmode=verify-full&sslrootcert=@root.pem";
    let said = server.refused("localhost", "closed", rooted).await;
    assert!(said.contains("sslcert"), "{said}");
    let certified = format!("{rooted}&sslcert=@client.pem&sslkey=@client.key");
    let queue = server.accepted("localhost", "closed", &certified).await;
    soon("a publish", queue.publish(NewEvent::new("t", "{}"))).await.unwrap();
    queue.close().await;
    let foreign = format!("{rooted}&sslcert=@foreign.pem&sslkey=@foreign.key");
    let error = soon("foreign", EventQueue::open(server.url("localhost", "closed", &foreign))).await.unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Invalid | ErrorKind::Unavailable), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tls_parameters_that_cannot_work_are_named() {
    let files = tempfile::tempdir().unwrap();
    std::fs::write(files.path().join("empty.pem"), "nothing").unwrap();
    let empty = files.path().join("empty.pem").display().to_string();
    for (parameters, word) in [
        ("sslmode=maybe".to_owned(), "verify-full"),
        ("sslmode=verify-full&sslrootcert=/no/such/file.pem".to_owned(), "sslrootcert"),
        (format!("sslmode=verify-ca&sslrootcert={empty}"), "sslrootcert"),
        ("sslmode=require&sslcert=/c.pem".to_owned(), "sslkey"),
        ("sslmode=require&sslkey=/c.key".to_owned(), "sslcert"),
        (format!("sslmode=require&sslcert={empty}&sslkey={empty}"), "sslcert"),
    ] {
        let error = EventQueue::open(format!("postgres://u@localhost:1/d?{parameters}")).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{parameters}: {error}");
        assert!(error.to_string().contains(word), "{parameters}: {error}");
    }
}
