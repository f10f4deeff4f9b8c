//! Limits of what Canaries and templates may make the controller do. Their authors are
//! tenants: they may write objects in their namespace, and no more than that is theirs
//! to reach with the controller's network and identity.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    str::FromStr,
    sync::Arc,
};

use reqwest::{
    ClientBuilder, Url,
    dns::{Addrs, Name, Resolve, Resolving},
};

#[derive(Clone, Debug, Default)]
pub struct Tenancy {
    /// A Canary may name templates and AlertProviders of its own namespace only.
    pub no_cross_namespace_refs: bool,
    pub addresses: TenantAddresses,
    /// ARNs of roles that templates in a namespace may have the controller assume. Those of
    /// ClusterAnalysisTemplates may name any.
    pub aws_roles: Vec<String>,
}

/// Which addresses of templates, webhooks and AlertProviders are connected to. Clones share
/// the lists.
#[derive(Clone, Debug)]
pub struct TenantAddresses(Arc<Lists>);

#[derive(Debug)]
struct Lists {
    /// Takes precedence over `deny`.
    allow: Vec<Cidr>,
    deny: Vec<Cidr>,
}

/// Link-local addresses, where clouds serve the credentials of a node, and EC2's other one.
const ALWAYS_DENIED: [Cidr; 3] = [
    Cidr { address: IpAddr::V4(Ipv4Addr::new(169, 254, 0, 0)), bits: 16 },
    Cidr { address: IpAddr::V6(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0)), bits: 10 },
    Cidr { address: IpAddr::V6(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0)), bits: 32 },
];

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "leads to {0}, to which tenants' addresses may not lead; name another server, or start the controller with --allow-cidr"
)]
pub struct DeniedAddress(IpAddr);

impl TenantAddresses {
    /// Link-local addresses are denied too, unless `allow` has them.
    pub fn new(allow: Vec<Cidr>, deny: Vec<Cidr>) -> Self {
        let deny = deny.into_iter().chain(ALWAYS_DENIED).collect();
        Self(Arc::new(Lists { allow, deny }))
    }

    /// Connections to names go through this check at their resolution; an address in a
    /// URL is to be checked by [`TenantAddresses::check`].
    pub fn guard(&self, builder: ClientBuilder) -> ClientBuilder {
        builder.dns_resolver(GuardedResolver(self.clone()))
    }

    /// Of a URL that has an address for a host.
    pub fn check(&self, url: &str) -> Result<(), DeniedAddress> {
        let url = Url::parse(url).ok();
        let host = url.as_ref().and_then(Url::host_str).unwrap_or_default();
        match host.trim_matches(['[', ']']).parse() {
            Ok(address) => self.check_address(address),
            Err(_) => Ok(()),
        }
    }

    /// The addresses of a host, each of them checked.
    pub async fn resolve(
        &self,
        host: &str,
        port: u16,
    ) -> Result<Vec<SocketAddr>, Box<dyn std::error::Error + Send + Sync>> {
        let found: Vec<SocketAddr> = tokio::net::lookup_host((host, port)).await?.collect();
        found.iter().try_for_each(|found| self.check_address(found.ip()))?;
        Ok(found)
    }

    fn check_address(&self, address: IpAddr) -> Result<(), DeniedAddress> {
        let address = address.to_canonical();
        let within = |list: &[Cidr]| list.iter().any(|cidr| cidr.contains(address));
        if within(&self.0.deny) && !within(&self.0.allow) { Err(DeniedAddress(address)) } else { Ok(()) }
    }
}

impl Default for TenantAddresses {
    fn default() -> Self {
        Self::new(Vec::new(), Vec::new())
    }
}

/// Connects to the addresses that were checked: a name cannot change between the two.
struct GuardedResolver(TenantAddresses);

impl Resolve for GuardedResolver {
    fn resolve(&self, name: Name) -> Resolving {
        let addresses = self.0.clone();
        Box::pin(async move {
            let found = addresses.resolve(name.as_str(), 0).await?;
            Ok::<Addrs, Box<dyn std::error::Error + Send + Sync>>(Box::new(found.into_iter()))
        })
    }
}

/// A range of addresses, such as `10.0.0.0/8`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cidr {
    address: IpAddr,
    bits: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no range of addresses; write one such as 10.0.0.0/8 or fd00::/8")]
pub struct InvalidCidr(String);

impl Cidr {
    fn contains(&self, address: IpAddr) -> bool {
        let same = |a: u128, b: u128, width: u8| {
            let rest = u32::from(width - self.bits);
            a.checked_shr(rest).unwrap_or(0) == b.checked_shr(rest).unwrap_or(0)
        };
        match (self.address, address) {
            (IpAddr::V4(a), IpAddr::V4(b)) => same(a.to_bits().into(), b.to_bits().into(), 32),
            (IpAddr::V6(a), IpAddr::V6(b)) => same(a.to_bits(), b.to_bits(), 128),
            (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => false,
        }
    }
}

impl FromStr for Cidr {
    type Err = InvalidCidr;

    fn from_str(text: &str) -> Result<Self, InvalidCidr> {
        let parse = || {
            let (address, bits) = text.split_once('/')?;
            let (address, bits): (IpAddr, u8) = (address.parse().ok()?, bits.parse().ok()?);
            let width = if address.is_ipv4() { 32 } else { 128 };
            (bits <= width).then_some(Self { address, bits })
        };
        parse().ok_or_else(|| InvalidCidr(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cidr(text: &str) -> Cidr {
        text.parse().expect("a range")
    }

    #[test]
    fn a_range_contains_its_addresses() {
        for (range, address, inside) in [
            ("10.0.0.0/8", "10.255.0.1", true),
            ("10.0.0.0/8", "11.0.0.1", false),
            ("10.0.0.7/32", "10.0.0.7", true),
            ("10.0.0.7/32", "10.0.0.6", false),
            ("0.0.0.0/0", "203.0.113.9", true),
            ("0.0.0.0/0", "::1", false),
            ("::/0", "2001:db8::1", true),
            ("fd00::/8", "fd12::1", true),
            ("fd00::/8", "fe12::1", false),
        ] {
            assert_eq!(
                cidr(range).contains(address.parse().expect("an address")),
                inside,
                "{range} {address}"
            );
        }
        for text in ["10.0.0.0", "10.0.0.0/33", "::/129", "x/8", "10.0.0.0/-1", ""] {
            assert!(text.parse::<Cidr>().is_err(), "{text}");
        }
    }

    #[test]
    fn link_local_addresses_are_denied_in_every_notation() {
        let addresses = TenantAddresses::default();
        for url in [
            "http://169.254.169.254/latest/meta-data",
            "http://2852039166/",
            "http://0xa9.0xfe.0xa9.0xfe/",
            "https://[::ffff:169.254.169.254]/",
            "http://[fe80::1]:80/",
            "http://[fd00:ec2::254]/",
        ] {
            assert!(addresses.check(url).is_err(), "{url}");
        }
        for url in
            ["http://127.0.0.1:9090", "http://10.0.0.1", "http://prometheus:9090", "https://[fd12::1]/"]
        {
            assert_eq!(addresses.check(url), Ok(()), "{url}");
        }
    }

    #[test]
    fn the_lists_of_the_operator_decide() {
        let addresses = TenantAddresses::new(
            vec![cidr("10.1.0.0/16"), cidr("169.254.20.10/32")],
            vec![cidr("10.0.0.0/8")],
        );
        assert!(addresses.check("http://10.2.0.1").is_err());
        assert_eq!(addresses.check("http://10.1.0.1"), Ok(()));
        assert_eq!(addresses.check("http://169.254.20.10"), Ok(()));
        assert!(addresses.check("http://169.254.169.254").is_err());
    }

    #[tokio::test]
    async fn a_name_is_resolved_and_then_checked() {
        let addresses = TenantAddresses::new(Vec::new(), vec![cidr("127.0.0.0/8"), cidr("::1/128")]);
        crate::tls::install_crypto_provider();
        let client = addresses.guard(ClientBuilder::new().no_proxy()).build().expect("a client");
        let error = client.get("http://localhost:9/").send().await.expect_err("denied");
        let sentence = crate::error_chain::error_chain(&error);
        assert!(sentence.contains("to which tenants' addresses may not lead"), "{sentence}");
    }
}
