//! Users and groups, as `/etc/passwd` and `/etc/group` of the guest's root have them.
//!
//! The files are read at every use: a user may be added while the guest runs. NSS is not consulted,
//! because a static binary cannot. A name that is not there is refused; a number need not be there,
//! and then has group 0 and home `/`, as in container engines.

use std::fs;

use ramet_proto::agent::{Account, Accounts, Group};

use crate::failure::{Outcome, failure};
use crate::sys::spawn::Ids;

/// Most users, and groups, that are told.
const TOLD_MAX: usize = 500;
/// Longest line of one that is told.
const LINE_MAX: usize = 200;

/// Someone who can run programs and own files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct User {
    /// Name, or the number in digits if it has none.
    pub name: String,
    /// User, group and supplementary groups.
    pub ids: Ids,
    /// Home directory.
    pub home: String,
    /// Login shell.
    pub shell: String,
}

/// The user meant by `name`, `number`, `name:group`, ...; root when absent.
pub fn find(wanted: Option<&str>) -> Outcome<User> {
    let passwd = read("/etc/passwd");
    let group = read("/etc/group");
    find_in(wanted.unwrap_or("0"), &passwd, &group)
}

/// All of them, as far as they fit into an answer.
pub fn accounts() -> Accounts {
    accounts_in(&read("/etc/passwd"), &read("/etc/group"))
}

fn accounts_in(passwd: &str, groups: &str) -> Accounts {
    let short = |line: &&str| line.len() <= LINE_MAX;
    let account = |line: &str| {
        let user = user_of(line, line.split(':').next()?)?;
        Some(Account { name: user.name, uid: user.ids.uid, home: user.home })
    };
    let group = |line: &str| {
        let (name, gid, _) = group_of(line)?;
        Some(Group { name: name.to_owned(), gid })
    };
    let named = |line: &&str| line.split(':').next().is_some_and(|name| name.len() <= LINE_MAX);
    Accounts {
        users: passwd.lines().filter(short).filter_map(account).take(TOLD_MAX).collect(),
        // A group may have many members, which are not told.
        groups: groups.lines().filter(named).filter_map(group).take(TOLD_MAX).collect(),
    }
}

fn read(path: &str) -> String {
    // An image without the file has no users but root.
    String::from_utf8_lossy(&fs::read(path).unwrap_or_default()).into_owned()
}

fn find_in(wanted: &str, passwd: &str, groups: &str) -> Outcome<User> {
    let (who, group) = match wanted.split_once(':') {
        Some((who, group)) => (who, Some(group)),
        None => (wanted, None),
    };
    let mut user = match passwd.lines().find_map(|line| user_of(line, who)) {
        Some(user) => user,
        None => unlisted(who)?,
    };
    match group {
        Some(group) => {
            user.ids.gid = group_number(group, groups)?;
            user.ids.groups = vec![user.ids.gid];
        }
        None => user.ids.groups = groups_of(&user, groups),
    }
    Ok(user)
}

fn user_of(line: &str, who: &str) -> Option<User> {
    let mut fields = line.split(':');
    let name = fields.next()?;
    let uid = fields.nth(1)?.parse().ok()?;
    let gid = fields.next()?.parse().ok()?;
    let home = fields.nth(1)?;
    let shell = fields.next().filter(|shell| !shell.is_empty()).unwrap_or("/bin/sh");
    (name == who || who.parse() == Ok(uid)).then(|| User {
        name: name.to_owned(),
        ids: Ids { uid, gid, groups: Vec::new() },
        home: home.to_owned(),
        shell: shell.to_owned(),
    })
}

fn unlisted(who: &str) -> Outcome<User> {
    let uid = match who {
        "root" => 0,
        digits => digits
            .parse()
            .map_err(|_| failure("no_such_user", format!("user {who}: not in /etc/passwd")))?,
    };
    Ok(User {
        name: if uid == 0 { "root".to_owned() } else { who.to_owned() },
        ids: Ids { uid, gid: 0, groups: Vec::new() },
        home: if uid == 0 { "/root" } else { "/" }.to_owned(),
        shell: "/bin/sh".to_owned(),
    })
}

fn group_number(wanted: &str, groups: &str) -> Outcome<u32> {
    if let Ok(number) = wanted.parse() {
        return Ok(number);
    }
    groups
        .lines()
        .filter_map(|line| group_of(line))
        .find(|(name, ..)| *name == wanted)
        .map(|(_, number, _)| number)
        .ok_or_else(|| failure("no_such_user", format!("group {wanted}: not in /etc/group")))
}

fn group_of(line: &str) -> Option<(&str, u32, &str)> {
    let mut fields = line.split(':');
    let name = fields.next()?;
    let number = fields.nth(1)?.parse().ok()?;
    Some((name, number, fields.next().unwrap_or("")))
}

fn groups_of(user: &User, groups: &str) -> Vec<u32> {
    let member = |members: &str| members.split(',').any(|name| name == user.name);
    let mut numbers = vec![user.ids.gid];
    let others = groups.lines().filter_map(group_of).filter(|(.., members)| member(members));
    for (_, number, _) in others {
        if !numbers.contains(&number) {
            numbers.push(number);
        }
    }
    numbers
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &str = "root:x:0:0:root:/root:/bin/bash\nuser:x:1000:1001::/home/user:\nbroken\n";
    const GROUP: &str = "root:x:0:\nstaff:x:50:user,other\nuser:x:1001:\nbroken\n";

    #[test]
    fn finds_by_name_with_all_groups() {
        let user = find_in("user", PASSWD, GROUP).expect("listed");
        assert_eq!(user.ids, Ids { uid: 1000, gid: 1001, groups: vec![1001, 50] });
        assert_eq!((user.home.as_str(), user.shell.as_str()), ("/home/user", "/bin/sh"));
    }

    #[test]
    fn finds_by_number_and_replaces_the_group() {
        let user = find_in("1000:staff", PASSWD, GROUP).expect("listed");
        assert_eq!(user.ids, Ids { uid: 1000, gid: 50, groups: vec![50] });
    }

    #[test]
    fn tells_those_that_are_listed() {
        let accounts = accounts_in(PASSWD, GROUP);
        let users: Vec<_> = accounts.users.iter().map(|one| (one.name.as_str(), one.uid)).collect();
        assert_eq!(users, [("root", 0), ("user", 1000)]);
        assert_eq!(accounts.users[1].home, "/home/user");
        let groups: Vec<_> =
            accounts.groups.iter().map(|one| (one.name.as_str(), one.gid)).collect();
        assert_eq!(groups, [("root", 0), ("staff", 50), ("user", 1001)]);
        let long = format!("{}:x:1:1::/:", "x".repeat(LINE_MAX));
        assert!(accounts_in(&long, &long).users.is_empty());
    }

    #[test]
    fn takes_unlisted_numbers_and_refuses_unlisted_names() {
        assert_eq!(find_in("77", PASSWD, GROUP).expect("a number").ids.uid, 77);
        assert_eq!(find_in("nobody", PASSWD, GROUP).expect_err("no name").code, "no_such_user");
        assert_eq!(find_in("user:none", PASSWD, GROUP).expect_err("group").code, "no_such_user");
        assert_eq!(find_in("root", "", "").expect("always").home, "/root");
    }
}
