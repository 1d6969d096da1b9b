//! Which addresses webhooks may go to. Pure: names are resolved elsewhere, and what they resolve to is checked here.
//!
//! Only global unicast addresses are public. An address that stands for an IPv4 address goes where that one is, and is
//! judged by it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use url::Host;

use crate::AllowedTarget;

/// Why an address is not public.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Refused {
    /// `0.0.0.0/8`, `::`.
    #[error("an unspecified address")]
    Unspecified,
    /// `127.0.0.0/8`, `::1`.
    #[error("a loopback address")]
    Loopback,
    /// `10.0.0.0/8`, `172.16.0.0/12`, `192.168.0.0/16`.
    #[error("a private address")]
    Private,
    /// `100.64.0.0/10`.
    #[error("an address behind a carrier's NAT")]
    SharedByCarrier,
    /// `169.254.0.0/16`, `fe80::/10`.
    #[error("a link-local address")]
    LinkLocal,
    /// Where clouds tell virtual machines about themselves, credentials included.
    #[error("a metadata service of a cloud")]
    Metadata,
    /// `fc00::/7`.
    #[error("a unique-local address")]
    UniqueLocal,
    /// `fec0::/10`.
    #[error("a site-local address")]
    SiteLocal,
    /// `224.0.0.0/4`, `ff00::/8`.
    #[error("a multicast address")]
    Multicast,
    /// `255.255.255.255`.
    #[error("the broadcast address")]
    Broadcast,
    /// `192.0.2.0/24` and others.
    #[error("an address for documentation")]
    Documentation,
    /// `198.18.0.0/15`, `2001:2::/48`.
    #[error("an address for benchmarks")]
    Benchmarking,
    /// `100::/64`.
    #[error("an address that discards")]
    Discard,
    /// `2001:10::/28`, `2001:20::/28`.
    #[error("an ORCHID, which is no address")]
    Orchid,
    /// `2002::/16`, `192.88.99.0/24`.
    #[error("a 6to4 address")]
    SixToFour,
    /// `2001::/32`.
    #[error("a Teredo address")]
    Teredo,
    /// `::/96`.
    #[error("an IPv4-compatible address")]
    Ipv4Compatible,
    /// `64:ff9b:1::/48`, whose translation is known to its network only.
    #[error("an address of a local NAT64")]
    LocalNat64,
    /// Everything else that is not global unicast.
    #[error("a reserved address")]
    Reserved,
}

/// Ranges of IPv4, the first that matches decides. After the registry of special-purpose addresses (RFC 6890 and later).
const V4: &[([u8; 4], u8, Refused)] = &[
    ([0, 0, 0, 0], 8, Refused::Unspecified),
    ([10, 0, 0, 0], 8, Refused::Private),
    ([100, 100, 100, 200], 32, Refused::Metadata),
    ([100, 64, 0, 0], 10, Refused::SharedByCarrier),
    ([127, 0, 0, 0], 8, Refused::Loopback),
    // Public by the registry, and within Azure the host of each virtual machine.
    ([168, 63, 129, 16], 32, Refused::Metadata),
    ([169, 254, 169, 254], 32, Refused::Metadata),
    ([169, 254, 170, 2], 32, Refused::Metadata),
    ([169, 254, 0, 0], 16, Refused::LinkLocal),
    ([172, 16, 0, 0], 12, Refused::Private),
    ([192, 0, 0, 192], 32, Refused::Metadata),
    ([192, 0, 0, 0], 24, Refused::Reserved),
    ([192, 0, 2, 0], 24, Refused::Documentation),
    ([192, 31, 196, 0], 24, Refused::Reserved),
    ([192, 52, 193, 0], 24, Refused::Reserved),
    ([192, 88, 99, 0], 24, Refused::SixToFour),
    ([192, 168, 0, 0], 16, Refused::Private),
    ([192, 175, 48, 0], 24, Refused::Reserved),
    ([198, 18, 0, 0], 15, Refused::Benchmarking),
    ([198, 51, 100, 0], 24, Refused::Documentation),
    ([203, 0, 113, 0], 24, Refused::Documentation),
    ([224, 0, 0, 0], 4, Refused::Multicast),
    ([255, 255, 255, 255], 32, Refused::Broadcast),
    ([240, 0, 0, 0], 4, Refused::Reserved),
];

/// Ranges of IPv6 by their first 128 bits, the first that matches decides. What is in none is public within `2000::/3`.
const V6: &[(u128, u8, Refused)] = &[
    (0, 128, Refused::Unspecified),
    (1, 128, Refused::Loopback),
    (0, 96, Refused::Ipv4Compatible),
    (0x0064_ff9b_0001 << 80, 48, Refused::LocalNat64),
    (0x0100 << 112, 64, Refused::Discard),
    (0x2001 << 112, 32, Refused::Teredo),
    (0x2001_0002 << 96, 48, Refused::Benchmarking),
    (0x2001_0010 << 96, 28, Refused::Orchid),
    (0x2001_0020 << 96, 28, Refused::Orchid),
    (0x2001 << 112, 23, Refused::Reserved),
    (0x2001_0db8 << 96, 32, Refused::Documentation),
    (0x2002 << 112, 16, Refused::SixToFour),
    (0x2620_004f_8000 << 80, 48, Refused::Reserved),
    (0x3ffe << 112, 16, Refused::Reserved),
    (0x3fff << 112, 20, Refused::Documentation),
    (0xfd00_0ec2_0000_0000_0000_0000_0000_0254, 128, Refused::Metadata),
    (0xfd20_00ce_0000_0000_0000_0000_0000_0254, 128, Refused::Metadata),
    (0xfc00 << 112, 7, Refused::UniqueLocal),
    (0xfe80 << 112, 10, Refused::LinkLocal),
    (0xfec0 << 112, 10, Refused::SiteLocal),
    (0xff00 << 112, 8, Refused::Multicast),
];

/// Global unicast, `2000::/3`.
const GLOBAL: (u128, u8) = (0x2000 << 112, 3);
/// `64:ff9b::/96`, through which networks without IPv4 reach it.
const NAT64: (u128, u8) = (0x0064_ff9b << 96, 96);
/// `::ffff:0:0/96`, and `::ffff:0:0:0/96` of the stateless translation.
const MAPPED: [(u128, u8); 2] = [(0xffff << 32, 96), (0xffff << 48, 96)];
/// The middle of an interface's identifier that ends with an IPv4 address (ISATAP), with its universal bit unset.
const ISATAP: u32 = 0x0000_5efe;

/// Whether webhooks may go to an address that nobody allowed.
pub fn is_public(address: IpAddr) -> Result<(), Refused> {
    match address {
        IpAddr::V4(address) => is_public_v4(address),
        IpAddr::V6(address) => is_public_v6(address),
    }
}

fn is_public_v4(address: Ipv4Addr) -> Result<(), Refused> {
    let within = |network: [u8; 4], bits: u8| (address.to_bits() ^ u32::from_be_bytes(network)) >> (32 - bits) == 0;
    match V4.iter().find(|(network, bits, _)| within(*network, *bits)) {
        Some((_, _, refused)) => Err(*refused),
        None => Ok(()),
    }
}

fn is_public_v6(address: Ipv6Addr) -> Result<(), Refused> {
    let bits = address.to_bits();
    let within = |(network, length): (u128, u8)| (bits ^ network) >> (128 - length) == 0;
    let last = |shift: u32| Ipv4Addr::from_bits((bits >> shift) as u32);
    if MAPPED.into_iter().chain([NAT64]).any(within) {
        return is_public_v4(last(0));
    }
    let refused = V6.iter().find(|(network, length, _)| within((*network, *length)));
    // Refused one way or the other: the reason is the place that would be reached.
    let inside = match refused {
        Some((_, _, Refused::Ipv4Compatible)) => Some(last(0)),
        Some((_, _, Refused::SixToFour)) => Some(last(80)),
        // The client's address is kept inverted.
        Some((_, _, Refused::Teredo)) => Some(Ipv4Addr::from_bits(!(bits as u32))),
        _ if (bits >> 32) as u32 & !0x0200_0000 == ISATAP => Some(last(0)),
        _ => None,
    };
    inside.map_or(Ok(()), is_public_v4)?;
    match refused {
        Some((_, _, refused)) => Err(*refused),
        None if within(GLOBAL) => Ok(()),
        None => Err(Refused::Reserved),
    }
}

/// The places that may be reached although they are not public or not encrypted.
#[derive(Debug, Clone, Default)]
pub struct Allowed {
    networks: Vec<IpNet>,
    hosts: Vec<String>,
}

impl Allowed {
    /// Of the configuration.
    #[must_use]
    pub fn new(targets: &[AllowedTarget]) -> Self {
        let mut allowed = Self::default();
        for target in targets {
            match target {
                AllowedTarget::Network(network) => allowed.networks.push(*network),
                AllowedTarget::Host(name) => allowed.hosts.push(without_dot(name).to_ascii_lowercase()),
            }
        }
        allowed
    }

    /// Whether a host was allowed as it is written: then it may be reached without encryption.
    #[must_use]
    pub fn has_host(&self, host: &Host<&str>) -> bool {
        match host {
            Host::Domain(name) => self.has_name(name),
            Host::Ipv4(address) => self.has_address(IpAddr::V4(*address)),
            Host::Ipv6(address) => self.has_address(IpAddr::V6(*address)),
        }
    }

    /// Whether webhooks may go to an address that a host has.
    pub fn check(&self, host: &Host<&str>, address: IpAddr) -> Result<(), Refused> {
        if self.has_address(address) || matches!(host, Host::Domain(name) if self.has_name(name)) {
            return Ok(());
        }
        is_public(address)
    }

    fn has_address(&self, address: IpAddr) -> bool {
        // A mapped address is the IPv4 address itself; other forms are different ways to a place, and only allowed by
        // their own networks.
        let address = address.to_canonical();
        self.networks.iter().any(|network| network.contains(&address))
    }

    fn has_name(&self, name: &str) -> bool {
        let name = without_dot(name);
        self.hosts.iter().any(|own| own.eq_ignore_ascii_case(name))
    }
}

/// A name without the dot that says that it is complete.
pub(super) fn without_dot(name: &str) -> &str {
    name.strip_suffix('.').unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn judge(text: &str) -> Result<(), Refused> {
        is_public(text.parse().unwrap_or_else(|_| panic!("{text}")))
    }

    #[test]
    fn public_addresses() {
        for text in [
            "1.1.1.1",
            "8.8.8.8",
            "9.255.255.255",
            "11.0.0.0",
            "100.63.255.255",
            "100.128.0.0",
            "126.255.255.255",
            "128.0.0.0",
            "168.63.129.15",
            "169.253.255.255",
            "169.255.0.0",
            "172.15.255.255",
            "172.32.0.0",
            "191.255.255.255",
            "192.0.1.0",
            "192.0.3.0",
            "192.167.255.255",
            "192.169.0.0",
            "198.17.255.255",
            "198.20.0.0",
            "223.255.255.255",
            "2001:4860:4860::8888",
            "2001:200::1",
            "2606:4700:4700::1111",
            "2a00:1450:4001:81b::200e",
            "2003::1",
            "::ffff:8.8.8.8",
            "::ffff:0:8.8.8.8",
            "64:ff9b::8.8.8.8",
            "2606:4700::5efe:8.8.8.8",
        ] {
            assert_eq!(judge(text), Ok(()), "{text}");
        }
    }

    #[test]
    fn refused_addresses() {
        use Refused::*;
        for (expected, texts) in [
            (Unspecified, "0.0.0.0 0.0.0.1 0.255.255.255 :: ::ffff:0.0.0.0 64:ff9b::0.0.0.0 64:ff9b::"),
            (Loopback, "127.0.0.1 127.0.0.0 127.255.255.255 ::1 ::ffff:127.0.0.1 ::ffff:7f00:1 ::127.0.0.1 ::7f00:1"),
            (
                Loopback,
                "::ffff:0:127.0.0.1 64:ff9b::127.0.0.1 64:ff9b::7f00:1 2002:7f00:1:: 2001:0:4136:e378:8000:63bf:80ff:fffe",
            ),
            (Loopback, "2606:4700::5efe:127.0.0.1 2606:4700::200:5efe:127.0.0.1 fe80::5efe:127.0.0.1"),
            (Private, "10.0.0.0 10.255.255.255 172.16.0.0 172.31.255.255 192.168.0.1 192.168.255.255 ::ffff:10.0.0.1"),
            (Private, "::10.0.0.1 64:ff9b::10.0.0.1 64:ff9b::c0a8:1 2002:a00:1:: 2002:c0a8:101::1 2001::f5ff:fffe"),
            (SharedByCarrier, "100.64.0.0 100.127.255.255 ::ffff:100.64.0.1 64:ff9b::100.64.0.1"),
            (
                Metadata,
                "169.254.169.254 169.254.170.2 100.100.100.200 192.0.0.192 168.63.129.16 fd00:ec2::254 fd20:ce::254",
            ),
            (Metadata, "::ffff:169.254.169.254 ::ffff:a9fe:a9fe 64:ff9b::a9fe:a9fe 2002:a9fe:a9fe:: ::169.254.169.254"),
            (LinkLocal, "169.254.0.0 169.254.255.255 169.254.169.253 fe80::1 febf::1 ::ffff:169.254.0.1"),
            (UniqueLocal, "fc00:: fc00::1 fd00::1 fdff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"),
            (SiteLocal, "fec0:: fec0::1 feff::1"),
            (Multicast, "224.0.0.0 224.0.0.1 239.255.255.255 ff00:: ff02::1 ffff::1 ::ffff:224.0.0.1"),
            (Broadcast, "255.255.255.255 ::ffff:255.255.255.255"),
            (
                Documentation,
                "192.0.2.0 192.0.2.255 198.51.100.1 203.0.113.1 2001:db8:: 2001:db8::1 3fff::1 3fff:fff::1",
            ),
            (Benchmarking, "198.18.0.0 198.19.255.255 2001:2:: 2001:2::1"),
            (Discard, "100:: 100::1"),
            (Orchid, "2001:10::1 2001:1f::1 2001:20::1 2001:2f::1"),
            (SixToFour, "192.88.99.1 2002:808:808::1"),
            (Teredo, "2001:0:4136:e378:8000:63bf:f7f7:f7f7"),
            (Ipv4Compatible, "::8.8.8.8"),
            (LocalNat64, "64:ff9b:1:: 64:ff9b:1::8.8.8.8 64:ff9b:1:ffff:ffff:ffff:ffff:ffff"),
            (Reserved, "192.0.0.0 192.0.0.8 192.31.196.1 192.52.193.1 192.175.48.1 240.0.0.0 255.255.255.254"),
            (
                Reserved,
                "64:ff9b:2:: 64:ff9b:0:1:: 100:0:0:1:: 200::1 400::1 1fff::1 4000::1 5f00::1 8000::1 c000::1 e000::1",
            ),
            (
                Reserved,
                "2001:1::1 2001:3::1 2001:4:112::1 2001:30::1 2001:1ff::1 2620:4f:8000::1 3ffe::1 fe00::1 f000::1",
            ),
        ] {
            for text in texts.split(' ') {
                assert_eq!(judge(text), Err(expected), "{text}");
            }
        }
    }

    #[test]
    fn what_is_allowed_is_open_and_nothing_beside_it() {
        let allowed: Vec<AllowedTarget> =
            ["10.0.0.0/8", "127.0.0.1", "::1", "fd00:1::/32", "Hooks.internal"].map(|one| one.parse().unwrap()).into();
        let allowed = Allowed::new(&allowed);
        let other = Host::Domain("other.example");
        let check = |address: &str| allowed.check(&other, address.parse().unwrap());
        for open in ["10.1.2.3", "::ffff:10.1.2.3", "127.0.0.1", "::1", "fd00:1:2::3", "8.8.8.8"] {
            assert_eq!(check(open), Ok(()), "{open}");
        }
        for shut in ["11.0.0.1", "127.0.0.2", "::2", "fd00:2::1", "64:ff9b::10.1.2.3", "2002:a01:203::", "::10.1.2.3"] {
            assert_eq!(check(shut).is_ok(), shut == "11.0.0.1", "{shut}");
        }
        for name in ["hooks.internal", "HOOKS.internal", "hooks.internal."] {
            let host = Host::Domain(name);
            assert!(allowed.has_host(&host), "{name}");
            assert_eq!(allowed.check(&host, [192, 168, 0, 1].into()), Ok(()));
        }
        for name in ["x.hooks.internal", "hooks.internal..", "hooks", "10.0.0.0"] {
            let host = Host::Domain(name);
            assert!(!allowed.has_host(&host), "{name}");
            assert_eq!(allowed.check(&host, [192, 168, 0, 1].into()), Err(Refused::Private));
        }
        assert!(allowed.has_host(&Host::Ipv6("::ffff:10.0.0.1".parse().unwrap())));
        assert!(!allowed.has_host(&Host::Ipv4([8, 8, 8, 8].into())));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]

        /// The standard library knows some of the ranges too.
        #[test]
        fn agrees_with_the_standard_library(bits in any::<u32>(), high in any::<u64>(), low in any::<u64>()) {
            let v4 = Ipv4Addr::from_bits(bits);
            if v4.is_private() || v4.is_loopback() || v4.is_link_local() || v4.is_multicast() || v4.is_broadcast()
                || v4.is_documentation() || v4.is_unspecified() || bits >> 28 == 15
            {
                prop_assert!(is_public_v4(v4).is_err());
            }
            for high in [high, 0x2000 << 48 | high >> 3] {
                let v6 = Ipv6Addr::from_bits(u128::from(high) << 64 | u128::from(low));
                if v6.is_unique_local() || v6.is_unicast_link_local() || v6.is_multicast() || high >> 61 != 1 {
                    prop_assert!(is_public_v6(v6).is_err());
                }
            }
        }

        /// Whichever way an IPv4 address is written, it is not reached if it is not public.
        #[test]
        fn no_form_opens_an_address(bits in any::<u32>()) {
            let v4 = Ipv4Addr::from_bits(bits);
            let own = is_public_v4(v4);
            let wide = u128::from(bits);
            for (high, shift) in [(0xffff << 32, 0), (0xffff << 48, 0), (NAT64.0, 0)] {
                prop_assert_eq!(is_public_v6(Ipv6Addr::from_bits(high | wide << shift)), own);
            }
            for (high, shift) in [(0, 0), (0x2002 << 112, 80), (0x0064_ff9b_0001 << 80, 0)] {
                prop_assert!(is_public_v6(Ipv6Addr::from_bits(high | wide << shift)).is_err());
            }
        }
    }
}
