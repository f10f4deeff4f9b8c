//! An address for every pod.
//!
//! All of 127.0.0.0/8 is this machine (on Linux), so a pod can have a loopback
//! address of its own and listen there on the very port it declares. Addresses
//! come from 127.64.0.0/10. A pod that really listens holds its address by a
//! UDP socket that nobody talks to: whoever finds it taken, another node or
//! another process, takes the next.

use std::io;
use std::net::{Ipv4Addr, UdpSocket};
use std::sync::atomic::{AtomicU32, Ordering};

const FIRST: u32 = u32::from_be_bytes([127, 64, 0, 0]);
const COUNT: u32 = 1 << 22;
const CLAIM_PORT: u16 = 10250;
const TRIES: u32 = 65_536;

pub struct Addresses {
    next: AtomicU32,
    claim: bool,
}

/// Given back when dropped.
pub struct Address {
    pub ip: Ipv4Addr,
    _claim: Option<UdpSocket>,
}

impl Addresses {
    /// Begins somewhere that `seed` says, so that nodes rarely meet.
    pub fn new(seed: u64, claim: bool) -> Addresses {
        Addresses { next: AtomicU32::new((seed % u64::from(COUNT)) as u32), claim }
    }

    pub fn take(&self) -> io::Result<Address> {
        let mut last = io::Error::other("no address is free");
        for _ in 0..TRIES {
            let number = self.next.fetch_add(1, Ordering::Relaxed) % COUNT;
            // People take these two for the network and for everybody in it.
            if matches!(number & 0xff, 0 | 0xff) {
                continue;
            }
            let ip = Ipv4Addr::from(FIRST | number);
            if !self.claim {
                return Ok(Address { ip, _claim: None });
            }
            match UdpSocket::bind((ip, CLAIM_PORT)) {
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
        let (one, other) = (Addresses::new(seed, true), Addresses::new(seed, true));
        let held: Vec<Address> =
            (0..300).map(|_| [&one, &other]).flatten().map(|from| from.take().unwrap()).collect();
        let mut ips: Vec<_> = held.iter().map(|address| address.ip).collect();
        ips.sort();
        ips.dedup();
        assert_eq!(ips.len(), 600);
        assert!(ips.iter().all(|ip| ip.octets()[0] == 127 && (64..128).contains(&ip.octets()[1])));
    }

    #[test]
    fn an_address_given_back_can_be_taken_again() {
        let seed = 1_000_000 + u64::from(std::process::id());
        let ip = Addresses::new(seed, true).take().unwrap().ip;
        assert_eq!(Addresses::new(seed, true).take().unwrap().ip, ip);
    }

    #[test]
    fn addresses_begin_anew_at_the_end_of_the_range() {
        let addresses = Addresses::new(u64::from(COUNT) - 2, false);
        assert_eq!(addresses.take().unwrap().ip, Ipv4Addr::new(127, 127, 255, 254));
        assert_eq!(addresses.take().unwrap().ip, Ipv4Addr::new(127, 64, 0, 1));
    }
}
