//! Identifies a client by its address, for limits.

use std::net::{IpAddr, Ipv6Addr};

/// The bits of an IPv6 address that its network assigns; one client often has all the others.
const NETWORK_BITS: u32 = 64;

/// Returns what identifies a client by its address: all of an IPv4 address, the network of an IPv6 address.
pub(crate) fn client_network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) if !address.is_loopback() => {
            Ipv6Addr::from_bits(address.to_bits() >> NETWORK_BITS << NETWORK_BITS).into()
        }
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_one_ipv6_network_are_one_client() {
        let text = |text: &str| client_network(text.parse().expect("an address"));
        assert_eq!(text("2001:db8:1:2::1"), text("2001:db8:1:2:ffff::9"));
        assert_ne!(text("2001:db8:1:2::1"), text("2001:db8:1:3::1"));
        assert_eq!(text("::ffff:10.0.0.1"), text("10.0.0.1"));
        assert_ne!(text("10.0.0.1"), text("10.0.0.2"));
        assert_eq!(text("::1"), "::1".parse::<IpAddr>().expect("an address"));
    }
}
