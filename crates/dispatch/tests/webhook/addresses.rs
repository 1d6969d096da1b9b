//! What must never be connected to, in all the ways to write it: nothing is recorded where connections are opened.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use futures_util::future::BoxFuture;
use ipnet::IpNet;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;
use rand::{Rng as _, SeedableRng as _};
use rustls::RootCertStore;
use tidegate_dispatch::webhook::address::Allowed;
use tidegate_dispatch::webhook::client::{Client, ClientOptions};
use tidegate_dispatch::webhook::connect::{Dial, Resolve, ResolveError};
use tidegate_dispatch::webhook::outcome::{FailureClass, Outcome};
use url::Url;

use crate::receiver::{Names, Receiver, Recorder, answer, client, failure, local, public, request, until_empty};

/// Addresses within a network that are reached by nobody but it.
const WITHIN: [&str; 12] = [
    "127.0.0.1",
    "127.255.255.254",
    "10.0.0.1",
    "172.16.0.1",
    "172.31.255.254",
    "192.168.1.1",
    "169.254.169.254",
    "169.254.170.2",
    "100.64.0.1",
    "100.100.100.200",
    "0.0.0.0",
    "198.18.0.1",
];

/// Hosts that are something else than they look like, or not public as they are.
const HOSTS: &[&str] = &[
    "localhost",
    "LOCALHOST",
    "localhost.",
    "%6c%6f%63alhost",
    "\u{24db}ocalhost",
    "\u{ff4c}ocalhost",
    "private.example",
    "private.example.",
    "metadata.google.internal",
    "mapped.example",
    "compatible.example",
    "nat64.example",
    "local-nat64.example",
    "six-to-four.example",
    "teredo.example",
    "link-local.example",
    "unique-local.example",
    "loopback6.example",
    "all-private.example",
    "b\u{fc}cher.example",
    "xn--bcher-kva.example",
    "127.0.0.1.nip.example",
    "127.0.0.1.",
    "0x7f.0.0.1.",
    "2130706433.",
    "127.1.",
    "127\u{3002}0\u{3002}0\u{3002}1",
    "127\u{ff0e}0\u{ff0e}0\u{ff0e}1",
    "127\u{ff61}0\u{ff61}0\u{ff61}1",
    "\u{ff11}\u{ff12}\u{ff17}.0.0.1",
    "\u{2460}\u{2461}\u{2466}.0.0.1",
    "\u{1d7cf}\u{1d7d0}\u{1d7d5}.0.0.1",
    "127.0.0.\u{00b9}",
    "%31%32%37.0.0.1",
    "127%2e0%2e0%2e1",
    "169.254.169.254\u{ad}",
    "169.254.\u{200b}169.254",
    "0",
    "0x0",
    "00",
    "0.0",
    "127.0.1",
    "127.1",
    "0x7f.1",
    "0177.1",
    "017700000001",
    "0x7f000001",
    "0X7F000001",
    "10.1",
    "192.168.257",
    "172.16.1",
    "169.254.43518",
    "[::]",
    "[::1]",
    "[0:0:0:0:0:0:0:1]",
    "[0000:0000:0000:0000:0000:0000:0000:0001]",
    "[::ffff:127.0.0.1]",
    "[0:0:0:0:0:ffff:7f00:1]",
    "[::ffff:0:127.0.0.1]",
    "[::127.0.0.1]",
    "[64:ff9b::127.0.0.1]",
    "[64:ff9b:1::8.8.8.8]",
    "[64:ff9b:1:fffe::a00:1]",
    "[2002:7f00:1::]",
    "[2002:808:808::]",
    "[2001::1]",
    "[2001:0:4136:e378:8000:63bf:3fff:fdd2]",
    "[2001:2::1]",
    "[2001:10::1]",
    "[2001:20::1]",
    "[2001:db8::1]",
    "[3fff::1]",
    "[100::1]",
    "[5f00::1]",
    "[fc00::1]",
    "[fd00:ec2::254]",
    "[fd20:ce::254]",
    "[fe80::1]",
    "[fe80::5efe:10.0.0.1]",
    "[fec0::1]",
    "[ff02::1]",
    "[4000::1]",
    "[e000::1]",
    "[2620:4f:8000::1]",
    "224.0.0.1",
    "239.255.255.255",
    "240.0.0.1",
    "255.255.255.255",
    "192.0.0.1",
    "192.0.0.192",
    "192.0.2.1",
    "192.88.99.1",
    "198.51.100.1",
    "203.0.113.1",
    "168.63.129.16",
    "0.1.2.3",
];

/// URLs whose host is not where it seems to be, or that are none at all.
const URLS: &[&str] = &[
    "https://example.com@127.0.0.1/",
    "https://example.com:443@127.0.0.1/",
    "https://example.com%40127.0.0.1/",
    "https://user:password@example.com/",
    "https://user@example.com/",
    "https://:password@example.com/",
    "https://127.0.0.1:443@[::1]/",
    "https://127.0.0.1#@example.com/",
    "https://127.0.0.1?@example.com/",
    "https://127.0.0.1/@example.com",
    "https://127.0.0.1\\@example.com/",
    "https:\\\\127.0.0.1\\",
    "https:127.0.0.1",
    "https:///127.0.0.1/",
    "https:////127.0.0.1/",
    "https://\t127.0.0.1/",
    "https://127.0.\n0.1/",
    " https://127.0.0.1/ ",
    "https://127.0.0.1:65536/",
    "https://127.0.0.1:0/",
    "https://example.com:0/",
    "https://[fe80::1%25eth0]/",
    "https://[fe80::1%eth0]/",
    "https://[::1%25lo]/",
    "https://[::1%lo]/",
    "https://[::ffff:127.0.0.1%25lo]/",
    "https://[::1/",
    "https://::1/",
    "https://[127.0.0.1]/",
    "https://[::ffff:127.1]/",
    "https://256.0.0.1/",
    "https://127.0.0.1.2/",
    "https://127.0.0.08/",
    "https://0x100000000/",
    "https://4294967296/",
    "https://1e1.0.0.1/",
    "https://-127.0.0.1/",
    "https:// 127.0.0.1/",
    "https://%00127.0.0.1/",
    "https://127.0.0.1%00.example.com/",
    "https://127.0.0.1%2f.example.com/",
    "https://127.0.0.1%23.example.com/",
    "https://127.0.0.1%0d%0ahost: x/",
    "https://nowhere.example/",
    "https://./",
    "https:///",
    "http://example.com/",
    "http://8.8.8.8/",
    "http://[2606:4700:4700::1111]/",
    "ftp://example.com/",
    "file:///etc/passwd",
    "file://127.0.0.1/etc/passwd",
    "gopher://127.0.0.1:6379/_x",
    "unix:///var/run/docker.sock",
    "data:text/plain,x",
    "javascript:alert(1)",
    "ws://127.0.0.1/",
    "wss://example.com/",
    "//127.0.0.1/",
    "",
];

/// Each way to write an IPv4 address as a host.
fn forms(address: Ipv4Addr) -> Vec<String> {
    let [a, b, c, d] = address.octets();
    let bits = address.to_bits();
    let (high, low) = (bits >> 16, bits & 0xffff);
    let inverted = !bits;
    vec![
        format!("{a}.{b}.{c}.{d}"),
        format!("{bits}"),
        format!("0{bits:o}"),
        format!("0x{bits:x}"),
        format!("0x{bits:08X}"),
        format!("0{a:o}.0{b:o}.0{c:o}.0{d:o}"),
        format!("000{a:o}.0{b:03o}.0{c:o}.0000{d:o}"),
        format!("0x{a:x}.0x{b:x}.0x{c:x}.0x{d:x}"),
        format!("{a}.{}", bits & 0x00ff_ffff),
        format!("{a}.{b}.{low}"),
        format!("0x{a:x}.{b}.0{low:o}"),
        format!("0{a:o}.0x{:x}", bits & 0x00ff_ffff),
        format!("{a}.{b}.{c}.{d}."),
        format!("[::ffff:{a}.{b}.{c}.{d}]"),
        format!("[::ffff:{high:x}:{low:x}]"),
        format!("[0:0:0:0:0:FFFF:{high:04X}:{low:04X}]"),
        format!("[::ffff:0:{high:x}:{low:x}]"),
        format!("[::{high:x}:{low:x}]"),
        format!("[64:ff9b::{a}.{b}.{c}.{d}]"),
        format!("[64:ff9b::{high:x}:{low:x}]"),
        format!("[64:ff9b:1::{high:x}:{low:x}]"),
        format!("[2002:{high:x}:{low:x}::1]"),
        format!("[2001:0:808:808:8000:63bf:{:x}:{:x}]", inverted >> 16, inverted & 0xffff),
        format!("[2606:4700::5efe:{high:x}:{low:x}]"),
        format!("[fe80::200:5efe:{high:x}:{low:x}]"),
    ]
}

/// The names of `HOSTS`.
fn names() -> Names {
    Names::default()
        .with("localhost", &[&["127.0.0.1", "::1"]])
        .with("private.example", &[&["10.0.0.1"]])
        .with("metadata.google.internal", &[&["169.254.169.254"]])
        .with("mapped.example", &[&["::ffff:10.0.0.1"]])
        .with("compatible.example", &[&["::10.0.0.1"]])
        .with("nat64.example", &[&["64:ff9b::10.0.0.1"]])
        .with("local-nat64.example", &[&["64:ff9b:1::10.0.0.1"]])
        .with("six-to-four.example", &[&["2002:a00:1::1"]])
        .with("teredo.example", &[&["2001::f5ff:fffe"]])
        .with("link-local.example", &[&["fe80::1", "169.254.1.1"]])
        .with("unique-local.example", &[&["fd12:3456::1"]])
        .with("loopback6.example", &[&["::1"]])
        .with("all-private.example", &[&["127.0.0.1", "10.0.0.1", "172.16.0.1", "192.168.0.1", "::1", "fc00::1"]])
        .with("xn--bcher-kva.example", &[&["192.168.0.1"]])
        .with("127.0.0.1.nip.example", &[&["127.0.0.1"]])
        .with("empty.example", &[&[]])
}

#[tokio::test]
async fn nothing_that_is_not_public_is_connected_to() {
    let mut urls: Vec<String> = URLS.iter().map(|url| (*url).to_owned()).collect();
    let hosts = HOSTS.iter().map(|host| (*host).to_owned());
    for host in hosts.chain(WITHIN.iter().flat_map(|address| forms(address.parse().unwrap()))) {
        urls.extend([format!("https://{host}/"), format!("https://{host}:8443/x"), format!("http://{host}/")]);
    }
    assert!(HOSTS.len() + URLS.len() + WITHIN.len() * 25 > 150 && urls.len() > 1_000, "{}", urls.len());
    let recorder = Arc::new(Recorder::default());
    let client = client(public(&recorder, names(), RootCertStore::empty()));
    let mut refused = 0;
    for url in &urls {
        // What is no URL cannot be asked for.
        let Ok(parsed) = Url::parse(url) else { continue };
        let found = failure(&client, &request(parsed.as_str())).await;
        let is_unknown = url.contains("nowhere.example") || found.message.contains("was not found");
        let expected = if is_unknown { FailureClass::Connection } else { FailureClass::Refused };
        assert_eq!(found.class, expected, "{url}: {found}");
        refused += usize::from(found.class == FailureClass::Refused);
    }
    assert_eq!(recorder.dialled(), []);
    assert!(refused > 900, "{refused} of {}", urls.len());
    until_empty(&client).await;
}

/// That nothing is recorded means something: what is public is.
#[tokio::test]
async fn what_is_public_is_connected_to() {
    let recorder = Arc::new(Recorder::default());
    let names = names().with("both.example", &[&["10.0.0.1", "8.8.8.8", "::1", "2606:4700::1", "fe80::1"]]);
    let client = client(public(&recorder, names, RootCertStore::empty()));
    for url in ["https://8.8.8.8/", "https://0x08080808:8443/", "https://[2606:4700::1]/", "https://[::ffff:8.8.8.8]/"]
    {
        assert_eq!(failure(&client, &request(url)).await.class, FailureClass::Connection, "{url}");
    }
    // Of a name that is both, what is public.
    failure(&client, &request("https://both.example/")).await;
    let dialled: Vec<String> = recorder.dialled().iter().map(ToString::to_string).collect();
    assert_eq!(
        dialled,
        [
            "8.8.8.8:443",
            "8.8.8.8:8443",
            "[2606:4700::1]:443",
            "[::ffff:8.8.8.8]:443",
            "8.8.8.8:443",
            "[2606:4700::1]:443"
        ]
    );
}

/// A name that is public when it is looked up first, and this machine from then on.
#[tokio::test]
async fn names_that_change_are_checked_at_each_connection() {
    let recorder = Arc::new(Recorder::default());
    let names = Names::default()
        .with("rebinds.example", &[&["8.8.8.8"], &["127.0.0.1"], &["8.8.4.4"], &["::1", "10.0.0.1"]])
        .with("empty.example", &[&[]]);
    let client = client(public(&recorder, names, RootCertStore::empty()));
    let mut classes = Vec::new();
    for _ in 0..5 {
        classes.push(failure(&client, &request("https://rebinds.example/")).await.class);
    }
    use FailureClass::{Connection, Refused};
    assert_eq!(classes, [Connection, Refused, Connection, Refused, Refused]);
    assert_eq!(failure(&client, &request("https://empty.example/")).await.class, Connection);
    let dialled: Vec<String> = recorder.dialled().iter().map(ToString::to_string).collect();
    assert_eq!(dialled, ["8.8.8.8:443", "8.8.4.4:443"]);
}

#[tokio::test]
async fn redirects_are_not_followed() {
    for status in [301, 302, 303, 307, 308] {
        let receiver = Receiver::http(None, move |_| async move {
            let location = "http://169.254.169.254/latest/meta-data/";
            let response = http::Response::builder().status(status).header("location", location);
            response.header("refresh", format!("0; url={location}")).body(Default::default()).unwrap()
        })
        .await;
        let recorder = Arc::new(Recorder::to(receiver.address));
        let client = client(ClientOptions { dial: Arc::clone(&recorder) as Arc<dyn Dial>, ..local() });
        assert_eq!(answer(&client, &request(&receiver.url())).await.status, status);
        assert_eq!(recorder.dialled(), [receiver.address]);
    }
}

/// A name tells its address: `a-BITS.example` for IPv4 and `b-BITS.example` for IPv6.
struct Telling;

impl Resolve for Telling {
    fn resolve(&self, name: String) -> BoxFuture<'static, Result<Vec<IpAddr>, ResolveError>> {
        let bits = name.split(['-', '.']).nth(1).and_then(|bits| u128::from_str_radix(bits, 16).ok());
        let found = bits.map(|bits| match name.starts_with('a') {
            true => IpAddr::from(Ipv4Addr::from_bits(bits as u32)),
            false => IpAddr::from(Ipv6Addr::from_bits(bits)),
        });
        Box::pin(async move { found.map(|one| vec![one]).ok_or_else(|| ResolveError::Failed("no such name".into())) })
    }
}

/// What is not public, apart from what stands for an IPv4 address.
const NETWORKS: &[&str] = &[
    "0.0.0.0/8",
    "10.0.0.0/8",
    "100.64.0.0/10",
    "127.0.0.0/8",
    "169.254.0.0/16",
    "172.16.0.0/12",
    "192.0.0.0/24",
    "192.0.2.0/24",
    "192.88.99.0/24",
    "192.168.0.0/16",
    "198.18.0.0/15",
    "198.51.100.0/24",
    "203.0.113.0/24",
    "224.0.0.0/4",
    "240.0.0.0/4",
    "168.63.129.16/32",
    "::/96",
    "64:ff9b:1::/48",
    "100::/64",
    "2001::/23",
    "2001:db8::/32",
    "2002::/16",
    "3fff::/20",
    "4000::/2",
    "8000::/1",
    "fc00::/7",
    "fe80::/10",
    "fec0::/10",
    "ff00::/8",
];

/// `TIDEGATE_URLS` says how many.
#[tokio::test]
async fn generated_urls_are_never_connected_to() {
    let count: u32 = std::env::var("TIDEGATE_URLS").map_or(50_000, |count| count.parse().unwrap());
    let networks: Vec<IpNet> = NETWORKS.iter().map(|network| network.parse().unwrap()).collect();
    let recorder = Arc::new(Recorder::default());
    let options = ClientOptions::new(Allowed::default(), Arc::new(Telling), RootCertStore::empty());
    let client = client(ClientOptions { dial: Arc::clone(&recorder) as Arc<dyn Dial>, ..options });
    let mut random = StdRng::seed_from_u64(20_26);
    for _ in 0..count {
        let url = generated(&mut random, &networks);
        deliver(&client, &url).await;
    }
    assert_eq!(recorder.dialled(), []);
    until_empty(&client).await;
}

async fn deliver(client: &Client, url: &str) {
    let Ok(parsed) = Url::parse(url) else { return };
    match client.deliver(&request(parsed.as_str())).await {
        Outcome::Failed(failure) if failure.class == FailureClass::Refused => {}
        other => panic!("{url}: {other:?}"),
    }
}

fn generated(random: &mut StdRng, networks: &[IpNet]) -> String {
    let address = match networks.choose(random).unwrap() {
        IpNet::V4(network) => {
            let host = random.random::<u32>() & network.hostmask().to_bits();
            IpAddr::from(Ipv4Addr::from_bits(network.network().to_bits() | host))
        }
        IpNet::V6(network) => {
            let host = random.random::<u128>() & network.hostmask().to_bits();
            IpAddr::from(Ipv6Addr::from_bits(network.network().to_bits() | host))
        }
    };
    let host = match (address, random.random_range(0..3)) {
        (IpAddr::V4(address), 0) => format!("a-{:x}.example", address.to_bits()),
        (IpAddr::V4(address), 1) => format!("b-{:x}.example", address.to_ipv6_mapped().to_bits()),
        (IpAddr::V4(address), _) => forms(address).choose(random).unwrap().clone(),
        (IpAddr::V6(address), 0) => format!("b-{:x}.example", address.to_bits()),
        (IpAddr::V6(address), 1) => {
            let parts: Vec<String> = address.segments().iter().map(|part| format!("{part:04X}")).collect();
            format!("[{}]", parts.join(":"))
        }
        (IpAddr::V6(address), _) => format!("[{address}]"),
    };
    let scheme = ["https", "http", "HTTPS"].choose(random).unwrap();
    let user = ["", "", "", "example.com@", "user:password@"].choose(random).unwrap();
    let port = ["", ":443", ":80", ":8443", ":22"].choose(random).unwrap();
    let path = ["", "/", "/hook?x=1", "/@example.com", "?@example.com", "#@example.com"].choose(random).unwrap();
    format!("{scheme}://{user}{host}{port}{path}")
}
