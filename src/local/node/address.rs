//! An address for every pod.
//!
//! All of 127.0.0.0/8 is this machine (on Linux), so a pod can have a loopback
//! address of its own and listen there on the very port it declares. Addresses
//! come from 127.64.0.0/10. A pod that really listens holds its address by a
//! UDP socket that nobody talks to: whoever finds it taken, another node or
//! another process, takes the next.
//!
//! A real API server refuses loopback addresses in EndpointSlices. There, pods
//! can claim to live in 10.64.0.0/10 instead and still listen on loopback: at
//! the twin of their address, which differs in the first byte only.

use std::io;
use std::net::{Ipv4Addr, UdpSocket};
use std::sync::atomic::{AtomicU32, Ordering};

/// Which addresses pods show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Network {
    /// 127.64.0.0/10: where they listen.
    Loopback,
    /// 10.64.0.0/10: they listen at the [`twin`] of what they show.
    Twin,
}

/// Whether it is among the loopback addresses that pods have.
pub fn is_pods(ip: Ipv4Addr) -> bool {
    let [a, b, ..] = ip.octets();
    a == 127 && b >> 6 == 1
}

/// Where a pod with this address listens.
pub fn twin(ip: Ipv4Addr) -> Ipv4Addr {
    let [_, b, c, d] = ip.octets();
    Ipv4Addr::new(127, b, c, d)
}

const COUNT: u32 = 1 << 22;
const CLAIM_PORT: u16 = 10250;
const TRIES: u32 = 65_536;

pub struct Addresses {
    next: AtomicU32,
    network: Network,
    claim: bool,
}

/// Given back when dropped.
pub struct Address {
    /// As the pod shows it.
    pub ip: Ipv4Addr,
    _claim: Option<UdpSocket>,
}

impl Addresses {
    /// Begins somewhere that `seed` says, so that nodes rarely meet.
    pub fn new(seed: u64, network: Network, claim: bool) -> Addresses {
        Addresses { next: AtomicU32::new((seed % u64::from(COUNT)) as u32), network, claim }
    }

    pub fn take(&self) -> io::Result<Address> {
        let mut last = io::Error::other("no address is free");
        for _ in 0..TRIES {
            let number = self.next.fetch_add(1, Ordering::Relaxed) % COUNT;
            // People take these two for the network and for everybody in it.
            if matches!(number & 0xff, 0 | 0xff) {
                continue;
            }
            let first = match self.network {
                Network::Loopback => 127,
                Network::Twin => 10,
            };
            let ip = Ipv4Addr::from(u32::from_be_bytes([first, 64, 0, 0]) | number);
            if !self.claim {
                return Ok(Address { ip, _claim: None });
            }
            match UdpSocket::bind((twin(ip), CLAIM_PORT)) {
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
    fn two_nodes_that_begin_at_the_same_place_do_not_share_an_address() {
        let seed = std::process::id().into();
        let (one, other) =
            (Addresses::new(seed, Network::Loopback, true), Addresses::new(seed, Network::Loopback, true));
        let held: Vec<Address> =
            (0..300).flat_map(|_| [&one, &other]).map(|from| from.take().unwrap()).collect();
        let mut ips: Vec<_> = held.iter().map(|address| address.ip).collect();
        ips.sort();
        ips.dedup();
        assert_eq!(ips.len(), 600);
        assert!(ips.iter().all(|ip| is_pods(*ip)));
        assert!(!is_pods(Ipv4Addr::LOCALHOST) && !is_pods(Ipv4Addr::new(127, 128, 0, 1)));
    }

    #[test]
    fn an_address_given_back_can_be_taken_again() {
        let seed = 1_000_000 + u64::from(std::process::id());
        let ip = Addresses::new(seed, Network::Loopback, true).take().unwrap().ip;
        assert_eq!(Addresses::new(seed, Network::Loopback, true).take().unwrap().ip, ip);
    }

    #[test]
    fn addresses_begin_anew_at_the_end_of_the_range() {
        let addresses = Addresses::new(u64::from(COUNT) - 2, Network::Loopback, false);
        assert_eq!(addresses.take().unwrap().ip, Ipv4Addr::new(127, 127, 255, 254));
        assert_eq!(addresses.take().unwrap().ip, Ipv4Addr::new(127, 64, 0, 1));
    }
}
