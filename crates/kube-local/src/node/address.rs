//! An address for every pod.
//!
//! All of 127.0.0.0/8 is this machine (on Linux), so a pod can have a loopback
//! address of its own and listen there on the port it declares. Addresses come
//! from 127.64.0.0/10. A listening pod claims its address by binding an otherwise
//! unused UDP socket; if another node or process holds the address, the next one
//! is tried.
//!
//! A real API server rejects loopback addresses in EndpointSlices. For such a
//! server pods report an address in 10.64.0.0/10 and listen on the loopback
//! address that differs only in the first byte.

use std::io;
use std::net::{Ipv4Addr, UdpSocket};
use std::sync::atomic::{AtomicU32, Ordering};

/// The address range that pods report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Network {
    /// 127.64.0.0/10, where they listen.
    Loopback,
    /// 10.64.0.0/10; they listen on the [`loopback_address`] of the reported one.
    Private,
}

/// Whether `ip` is in the loopback range of pods.
pub fn is_pod_address(ip: Ipv4Addr) -> bool {
    let [a, b, ..] = ip.octets();
    a == 127 && b >> 6 == 1
}

/// The address on which a pod with this reported address listens.
pub fn loopback_address(ip: Ipv4Addr) -> Ipv4Addr {
    let [_, b, c, d] = ip.octets();
    Ipv4Addr::new(127, b, c, d)
}

const ADDRESS_COUNT: u32 = 1 << 22;
const CLAIM_PORT: u16 = 10250;
const MAX_CLAIM_ATTEMPTS: u32 = 65_536;

/// Allocates pod addresses.
pub struct AddressPool {
    next: AtomicU32,
    network: Network,
    should_claim: bool,
}

/// An allocated address; released when dropped.
pub struct Address {
    /// The address that the pod reports.
    pub ip: Ipv4Addr,
    _claim: Option<UdpSocket>,
}

impl AddressPool {
    /// Starts at an address derived from `seed`, so that nodes rarely collide.
    pub fn new(seed: u64, network: Network, claim: bool) -> AddressPool {
        AddressPool {
            next: AtomicU32::new((seed % u64::from(ADDRESS_COUNT)) as u32),
            network,
            should_claim: claim,
        }
    }

    pub fn allocate(&self) -> io::Result<Address> {
        let mut last = io::Error::other("no address is free");
        for _ in 0..MAX_CLAIM_ATTEMPTS {
            let number = self.next.fetch_add(1, Ordering::Relaxed) % ADDRESS_COUNT;
            // Commonly reserved as network and broadcast addresses.
            if matches!(number & 0xff, 0 | 0xff) {
                continue;
            }
            let first = match self.network {
                Network::Loopback => 127,
                Network::Private => 10,
            };
            let ip = Ipv4Addr::from(u32::from_be_bytes([first, 64, 0, 0]) | number);
            if !self.should_claim {
                return Ok(Address { ip, _claim: None });
            }
            match UdpSocket::bind((loopback_address(ip), CLAIM_PORT)) {
                Ok(claim) => return Ok(Address { ip, _claim: Some(claim) }),
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => last = error,
                Err(error) => return Err(error),
            }
        }
        Err(last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_nodes_that_start_at_the_same_address_share_none() {
        let seed = std::process::id().into();
        let (one, other) = (
            AddressPool::new(seed, Network::Loopback, true),
            AddressPool::new(seed, Network::Loopback, true),
        );
        let held: Vec<Address> =
            (0..300).flat_map(|_| [&one, &other]).map(|from| from.allocate().unwrap()).collect();
        let mut ips: Vec<_> = held.iter().map(|address| address.ip).collect();
        ips.sort();
        ips.dedup();
        assert_eq!(ips.len(), 600);
        assert!(ips.iter().all(|ip| is_pod_address(*ip)));
        assert!(!is_pod_address(Ipv4Addr::LOCALHOST) && !is_pod_address(Ipv4Addr::new(127, 128, 0, 1)));
    }

    #[test]
    fn a_released_address_can_be_allocated_again() {
        let seed = 1_000_000 + u64::from(std::process::id());
        let ip = AddressPool::new(seed, Network::Loopback, true).allocate().unwrap().ip;
        assert_eq!(AddressPool::new(seed, Network::Loopback, true).allocate().unwrap().ip, ip);
    }

    #[test]
    fn allocation_wraps_at_the_end_of_the_range() {
        let addresses = AddressPool::new(u64::from(ADDRESS_COUNT) - 2, Network::Loopback, false);
        assert_eq!(addresses.allocate().unwrap().ip, Ipv4Addr::new(127, 127, 255, 254));
        assert_eq!(addresses.allocate().unwrap().ip, Ipv4Addr::new(127, 64, 0, 1));
    }
}
