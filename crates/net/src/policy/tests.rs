//! Rules against a table of cases, and by property.

use proptest::prelude::*;

use super::*;

fn allow(to: &str) -> Allow {
    Allow { to: to.into(), ports: vec![], protocols: vec![] }
}

fn rules(policies: &[&[&str]]) -> Rules {
    let policy = |to: &&[&str]| Policy { allow: to.iter().map(|to| allow(to)).collect() };
    Rules::parse(&policies.iter().map(policy).collect::<Vec<_>>()).unwrap()
}

fn tcp(address: &str, port: u16) -> Destination {
    Destination { address: address.parse().unwrap(), port, protocol: Protocol::Tcp }
}

fn kept() -> Kept {
    Kept { more: vec!["203.0.113.9".parse().unwrap(), "192.168.7.7".parse().unwrap()] }
}

#[test]
fn nothing_is_allowed_unless_said() {
    for rules in [rules(&[]), rules(&[&[]]), rules(&[&["*"], &[]])] {
        assert_eq!(
            rules.decide(tcp("192.0.2.1", 80), &["example.org"], &kept()),
            Decision::Refused(Reason::NotAllowed)
        );
        assert!(!rules.allows_lookup("example.org"));
    }
}

#[test]
fn names_fit_exactly_or_below() {
    let rules = rules(&[&["Example.org", "*.example.net."]]);
    for name in ["example.org", "a.example.net", "a.b.example.net"] {
        assert!(rules.allows_lookup(name), "{name}");
    }
    for name in ["a.example.org", "example.net", "xexample.net", ".example.net", "example.org.evil"]
    {
        assert!(!rules.allows_lookup(name), "{name}");
    }
}

#[test]
fn an_address_needs_a_pinned_name() {
    let rules = rules(&[&["example.org"]]);
    let to = tcp("192.0.2.1", 443);
    assert_eq!(rules.decide(to, &["example.org"], &kept()), Decision::AllowedByName);
    assert_eq!(rules.decide(to, &["other.org"], &kept()), Decision::Refused(Reason::NotAllowed));
    assert_eq!(rules.decide(to, &[], &kept()), Decision::Refused(Reason::NotAllowed));
}

#[test]
fn policies_agree_on_one_name() {
    let to = tcp("192.0.2.1", 443);
    let apart = rules(&[&["a.org"], &["b.org"]]);
    assert_eq!(
        apart.decide(to, &["a.org", "b.org"], &kept()),
        Decision::Refused(Reason::NotAllowed)
    );
    let together = rules(&[&["a.org", "b.org"], &["b.org", "192.0.2.7"]]);
    assert_eq!(together.decide(to, &["a.org", "b.org"], &kept()), Decision::AllowedByName);
    let mixed = rules(&[&["192.0.2.0/24"], &["b.org"]]);
    assert_eq!(mixed.decide(to, &["b.org"], &kept()), Decision::AllowedByName);
    let direct = rules(&[&["192.0.2.0/24"], &["*"]]);
    assert_eq!(direct.decide(to, &[], &kept()), Decision::Allowed);
}

#[test]
fn kept_ranges_need_a_rule_that_lies_in_them() {
    let decide = |rule: &str, address: &str| {
        rules(&[&[rule]]).decide(tcp(address, 80), &["example.org"], &kept())
    };
    for (rule, address) in [
        ("*", "10.1.2.3"),
        ("0.0.0.0/0", "10.1.2.3"),
        ("10.0.0.0/7", "10.1.2.3"),
        ("example.org", "10.1.2.3"),
        ("*", "169.254.169.254"),
        ("169.254.0.0/16", "169.254.169.254"),
        ("*", "::ffff:10.1.2.3"),
        ("*", "64:ff9b::a9fe:a9fe"),
        ("*", "203.0.113.9"),
        ("203.0.113.0/24", "203.0.113.9"),
        ("192.168.0.0/16", "192.168.7.7"),
        ("::/0", "fd00:ec2::254"),
        ("fd00::/8", "fd00:ec2::254"),
    ] {
        assert_eq!(
            decide(rule, address),
            Decision::Refused(Reason::PrivateAddress),
            "{rule} {address}"
        );
    }
    for (rule, address) in [
        ("10.0.0.0/8", "10.1.2.3"),
        ("10.1.2.3", "10.1.2.3"),
        ("10.1.2.3", "::ffff:10.1.2.3"),
        ("169.254.169.254", "169.254.169.254"),
        ("203.0.113.9", "203.0.113.9"),
        ("203.0.113.0/24", "203.0.113.8"),
        ("192.168.7.7", "192.168.7.7"),
        ("fd00:ec2::254", "fd00:ec2::254"),
        ("127.0.0.1", "127.0.0.1"),
    ] {
        assert_eq!(decide(rule, address), Decision::Allowed, "{rule} {address}");
    }
}

#[test]
fn ports_and_protocols_narrow() {
    let policy = Policy {
        allow: vec![Allow {
            to: "192.0.2.1".into(),
            ports: vec![PortRange { first: 80, last: 89 }],
            protocols: vec![Protocol::Tcp],
        }],
    };
    let rules = Rules::parse(&[policy]).unwrap();
    let decide = |port, protocol| {
        let to = Destination { address: "192.0.2.1".parse().unwrap(), port, protocol };
        rules.decide(to, &[], &kept()) == Decision::Allowed
    };
    assert!(decide(80, Protocol::Tcp) && decide(89, Protocol::Tcp));
    assert!(!decide(79, Protocol::Tcp) && !decide(90, Protocol::Tcp));
    assert!(!decide(80, Protocol::Udp) && !decide(0, Protocol::Icmp));
}

#[test]
fn rebinding_answers_are_not_shown() {
    let name = rules(&[&["example.org"]]);
    assert!(name.allows_answer("192.0.2.1".parse().unwrap(), &kept()));
    for address in ["10.0.0.1", "127.0.0.1", "::1", "::ffff:127.0.0.1", "203.0.113.9"] {
        assert!(!name.allows_answer(address.parse().unwrap(), &kept()), "{address}");
    }
    let both = rules(&[&["example.org", "10.0.0.0/24"]]);
    assert!(both.allows_answer("10.0.0.1".parse().unwrap(), &kept()));
    assert!(!both.allows_answer("10.0.1.1".parse().unwrap(), &kept()));
}

fn target() -> impl Strategy<Value = String> {
    prop_oneof![
        Just("*".to_owned()),
        "[a-c]\\.(org|net)",
        "\\*\\.(org|net)",
        (any::<[u8; 4]>(), 0u8..=32)
            .prop_map(|(a, p)| Range::around(IpAddr::from(a), p).to_string()),
        (any::<[u8; 16]>(), 0u8..=128)
            .prop_map(|(a, p)| Range::around(IpAddr::from(a), p).to_string()),
    ]
}

fn policy() -> impl Strategy<Value = Policy> {
    let ports = prop::collection::vec((1u16..4, 0u16..3), 0..2).prop_map(|ports| {
        ports.into_iter().map(|(first, more)| PortRange { first, last: first + more }).collect()
    });
    let rule = (target(), ports).prop_map(|(to, ports)| Allow { to, ports, protocols: vec![] });
    prop::collection::vec(rule, 0..4).prop_map(|allow| Policy { allow })
}

proptest! {
    /// One more policy can only take away.
    #[test]
    fn more_policies_only_narrow(
        some in prop::collection::vec(policy(), 1..3), one in policy(), address: [u8; 4], port in 1u16..6,
    ) {
        let to = Destination { address: address.into(), port, protocol: Protocol::Tcp };
        let names = ["a.org", "b.net"];
        let before = Rules::parse(&some).unwrap();
        let after = Rules::parse(&[some, vec![one]].concat()).unwrap();
        let refused = |rules: &Rules| matches!(rules.decide(to, &names, &kept()), Decision::Refused(_));
        prop_assert!(!refused(&before) || refused(&after));
        prop_assert!(before.allows_lookup("a.org") || !after.allows_lookup("a.org"));
    }

    /// A kept address is never reached without a rule of a range inside a kept one.
    #[test]
    fn names_and_stars_never_reach_kept_ranges(policies in prop::collection::vec(policy(), 1..3), port in 1u16..6) {
        let to = tcp("169.254.169.254", port);
        let named = policies.iter().all(|p| p.allow.iter().any(|a| a.to == "169.254.169.254"));
        let decision = Rules::parse(&policies).unwrap().decide(to, &["a.org"], &kept());
        prop_assert!(named || matches!(decision, Decision::Refused(_)));
    }
}
