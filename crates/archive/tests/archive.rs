//! Trees that come back as they went, archives of others, and archives that mean harm.

use std::fs::{self, File, Permissions};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use proptest::prelude::*;
use ramet_archive::{Counts, Error, Owner, Pack, Specials, Unpack, pack, unpack};
use tar::{Builder, EntryType, Header};
use tempfile::TempDir;

const AS_IT_IS: Unpack =
    Unpack { owner: Owner::Archive, mode_mask: 0o7777, specials: Specials::Make };
const HERE: Unpack = Unpack { owner: Owner::Own, mode_mask: 0o777, specials: Specials::Refuse };

fn packed(root: &Path) -> Vec<u8> {
    let mut bytes = Vec::new();
    pack(root, &mut bytes, Pack::default()).expect("packed");
    bytes
}

/// A directory beside others that must stay as they are.
struct Bed {
    directory: TempDir,
}

impl Bed {
    fn new() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        fs::create_dir(directory.path().join("target")).expect("a target");
        fs::write(directory.path().join("outside"), "untouched").expect("a file");
        Self { directory }
    }

    fn target(&self) -> PathBuf {
        self.directory.path().join("target")
    }

    fn unpack(&self, bytes: &[u8]) -> Result<Counts, Error> {
        unpack(bytes, &self.target(), AS_IT_IS)
    }

    /// It is refused, and nothing outside was touched.
    #[track_caller]
    fn refuses(&self, bytes: &[u8], why: &str) {
        let error = self.unpack(bytes).expect_err("refused").to_string();
        assert!(error.contains(why), "{error}");
        let outside = fs::read_to_string(self.directory.path().join("outside")).expect("there");
        assert_eq!(outside, "untouched");
        let names = fs::read_dir(self.directory.path()).expect("a directory").count();
        assert_eq!(names, 2, "something else was made");
    }
}

/// Kind, name, target and content.
type Made<'a> = (EntryType, &'a [u8], &'a [u8], &'a [u8]);

/// An archive of entries that no builder would write.
fn archive(entries: &[Made<'_>]) -> Vec<u8> {
    let mut builder = Builder::new(Vec::new());
    for (kind, name, link, content) in entries {
        let mut header = Header::new_gnu();
        header.as_old_mut().name[..name.len()].copy_from_slice(name);
        header.as_old_mut().linkname[..link.len()].copy_from_slice(link);
        header.set_entry_type(*kind);
        header.set_mode(0o644);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(1);
        header.set_size(content.len() as u64);
        header.set_cksum();
        builder.append(&header, *content).expect("written");
    }
    builder.into_inner().expect("ended")
}

#[test]
fn a_tree_comes_back_as_it_went() {
    let (from, to) = (tempfile::tempdir().unwrap(), Bed::new());
    let at = |name: &str| from.path().join(name);
    fs::create_dir_all(at("a/b")).unwrap();
    let content: Vec<u8> = (0..200_000_u32).flat_map(u32::to_le_bytes).collect();
    fs::write(at("a/b/data"), &content).unwrap();
    fs::write(at("empty"), "").unwrap();
    fs::set_permissions(at("a/b/data"), Permissions::from_mode(0o4751)).unwrap();
    chown(at("a/b/data"), Some(7), Some(8)).unwrap();
    fs::set_permissions(at("a/b/data"), Permissions::from_mode(0o4751)).unwrap();
    fs::set_permissions(at("a"), Permissions::from_mode(0o1777)).unwrap();
    fs::hard_link(at("a/b/data"), at("again")).unwrap();
    symlink("/nowhere/at all", at("link")).unwrap();
    let long = format!("{}/{}", "d".repeat(120), "f".repeat(130));
    fs::create_dir(at(&"d".repeat(120))).unwrap();
    fs::write(at(&long), "long").unwrap();
    symlink("t".repeat(300), at("longlink")).unwrap();
    let odd = std::ffi::OsStr::from_bytes(b"no \xff UTF-8\n");
    fs::write(from.path().join(odd), "odd").unwrap();
    Command::new("mkfifo").arg(at("fifo")).status().unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(at("socket")).unwrap();

    let counts = to.unpack(&packed(from.path())).unwrap();
    let there = |name: &str| to.target().join(name);
    assert_eq!(fs::read(there("a/b/data")).unwrap(), content);
    let metadata = fs::metadata(there("a/b/data")).unwrap();
    assert_eq!((metadata.mode() & 0o7777, metadata.uid(), metadata.gid()), (0o4751, 7, 8));
    assert_eq!(metadata.mtime(), fs::metadata(at("a/b/data")).unwrap().mtime());
    assert_eq!(metadata.ino(), fs::metadata(there("again")).unwrap().ino());
    assert_eq!(fs::metadata(there("a")).unwrap().mode() & 0o7777, 0o1777);
    assert_eq!(fs::read_link(there("link")).unwrap(), Path::new("/nowhere/at all"));
    assert_eq!(fs::read_link(there("longlink")).unwrap().as_os_str().len(), 300);
    assert_eq!(fs::read(there(&long)).unwrap(), b"long");
    assert_eq!(fs::read(to.target().join(odd)).unwrap(), b"odd");
    assert_eq!(fs::read(there("empty")).unwrap(), b"");
    assert!(fs::metadata(there("fifo")).unwrap().file_type().is_fifo());
    assert!(!there("socket").exists());
    assert_eq!(counts.files, 4);
    assert_eq!(counts.bytes, content.len() as u64 + 4 + 3);
}

#[test]
fn holes_stay_holes() {
    let (from, to) = (tempfile::tempdir().unwrap(), Bed::new());
    let sparse = File::create(from.path().join("sparse")).unwrap();
    for number in 0..40 {
        sparse.write_all_at(b"data", number * (10 << 20)).unwrap();
    }
    sparse.set_len(1 << 30).unwrap();
    File::create(from.path().join("nothing")).unwrap().set_len(1 << 30).unwrap();
    let bytes = packed(from.path());
    assert!(bytes.len() < 2 << 20, "{} bytes for a few", bytes.len());
    to.unpack(&bytes).unwrap();
    for name in ["sparse", "nothing"] {
        let metadata = fs::metadata(to.target().join(name)).unwrap();
        assert_eq!(metadata.len(), 1 << 30);
        assert!(metadata.blocks() * 512 < 8 << 20, "{name} has no holes");
    }
    let copy = File::open(to.target().join("sparse")).unwrap();
    for number in 0..40 {
        let mut piece = [1; 6];
        copy.read_exact_at(&mut piece, number * (10 << 20)).unwrap();
        assert_eq!(&piece, b"data\0\0", "piece {number}");
    }
}

#[test]
fn other_programs_read_and_write_them() {
    let (from, to) = (tempfile::tempdir().unwrap(), Bed::new());
    fs::create_dir(from.path().join("d")).unwrap();
    fs::write(from.path().join("d").join("n".repeat(150)), "text").unwrap();
    let sparse = File::create(from.path().join("sparse")).unwrap();
    sparse.write_all_at(b"end", 50 << 20).unwrap();
    let mut tar = Command::new("tar");
    let mut tar = tar.arg("-xC").arg(to.target()).stdin(Stdio::piped()).spawn().unwrap();
    pack(from.path(), tar.stdin.take().unwrap(), Pack::default()).unwrap();
    assert!(tar.wait().unwrap().success());
    let same = Command::new("diff").arg("-r").arg(from.path()).arg(to.target()).status().unwrap();
    assert!(same.success());
    for options in [&["--format=gnu", "-S"][..], &["--format=posix"]] {
        let to = Bed::new();
        let mut tar = Command::new("tar");
        let tar = tar.args(options).arg("-cC").arg(from.path()).args(["sparse", "d"]);
        let output = tar.output().unwrap();
        to.unpack(&output.stdout).unwrap();
        let same = Command::new("diff").arg("-r").arg(from.path()).arg(to.target()).status();
        assert!(same.unwrap().success(), "{options:?}");
    }
    let mut tar = Command::new("tar");
    let tar = tar.args(["--format=posix", "-ScC"]).arg(from.path()).arg("sparse");
    to.refuses(&tar.output().unwrap().stdout, "PAX");
}

#[test]
fn what_is_there_is_joined_and_replaced() {
    let bed = Bed::new();
    let there = |name: &str| bed.target().join(name);
    fs::set_permissions(bed.target(), Permissions::from_mode(0o750)).unwrap();
    fs::create_dir(there("d")).unwrap();
    fs::write(there("d/kept"), "kept").unwrap();
    fs::write(there("f"), "old and longer").unwrap();
    symlink("../outside", there("l")).unwrap();
    let bytes = archive(&[
        (EntryType::Directory, b"./", b"", b""),
        (EntryType::Directory, b"d/", b"", b""),
        (EntryType::Regular, b"d/new", b"", b"new"),
        (EntryType::Regular, b"f", b"", b"new"),
        (EntryType::Regular, b"l", b"", b"in place of the link"),
        (EntryType::Regular, b"made/on/the/way", b"", b"x"),
        (EntryType::Regular, b"./d/../d/x", b"", b"x"),
    ]);
    let error = bed.unpack(&bytes).unwrap_err();
    assert!(error.to_string().contains(".."), "{error}");
    assert_eq!(fs::metadata(bed.target()).unwrap().mode() & 0o7777, 0o750);
    assert_eq!(fs::read(there("d/kept")).unwrap(), b"kept");
    assert_eq!(fs::read(there("f")).unwrap(), b"new");
    assert!(fs::symlink_metadata(there("l")).unwrap().is_file());
    assert_eq!(fs::read(there("made/on/the/way")).unwrap(), b"x");
    bed.refuses(&archive(&[(EntryType::Regular, b"d", b"", b"x")]), "target/d");
    bed.refuses(&archive(&[(EntryType::Directory, b"f/", b"", b"")]), "target/f");
}

#[test]
fn nothing_leads_out() {
    use EntryType::{Directory, Link, Regular, Symlink};
    let bed = Bed::new();
    let absolute = bed.directory.path().join("outside");
    let absolute = absolute.as_os_str().as_bytes();
    let cases: &[(&[Made<'_>], &str)] = &[
        (&[(Regular, b"../outside", b"", b"x")], ".."),
        (&[(Regular, b"a/../../outside", b"", b"x")], ".."),
        (&[(Regular, absolute, b"", b"x")], "absolute"),
        (&[(Directory, b"..", b"", b"")], ".."),
        (&[(Symlink, b"s", b"..", b""), (Regular, b"s/outside", b"", b"x")], "leads out"),
        (&[(Symlink, b"s", b"/", b""), (Regular, b"s/tmp/x", b"", b"x")], "leads out"),
        (&[(Symlink, b"s", b"/", b""), (Directory, b"s/tmp/new", b"", b"")], "leads out"),
        (
            &[
                (Symlink, b"p", b"s", b""),
                (Symlink, b"s", b"../", b""),
                (Link, b"p/q", b"p/q", b""),
            ],
            "",
        ),
        (
            &[
                (Symlink, b"s", b"..", b""),
                (Link, b"l", b"s/outside", b""),
                (Regular, b"l", b"", b"x"),
            ],
            "leads out",
        ),
        (&[(Link, b"l", b"../outside", b"")], ".."),
        (&[(Link, b"l", absolute, b"")], "absolute"),
        (&[(Link, b"l", b"l", b"")], "itself"),
        (
            &[(Symlink, b"a", b"b", b""), (Symlink, b"b", b"a", b""), (Regular, b"a/x", b"", b"")],
            "leads out",
        ),
        (&[(EntryType::Char, b"null", b"", b"")], "devices"),
        (&[(EntryType::Block, b"sda", b"", b"")], "devices"),
        (&[(EntryType::new(b'Z'), b"z", b"", b"")], "not known"),
        (&[(Regular, b"", b"", b"x")], "names no file"),
        (&[(Symlink, b"s", b"", b"")], "target"),
    ];
    for (entries, why) in cases {
        let bed = Bed::new();
        bed.refuses(&archive(entries), why);
    }
    // A symlink that stays within is one like any other.
    let within: &[Made<'_>] =
        &[(Directory, b"d/", b"", b""), (Symlink, b"s", b"d", b""), (Regular, b"s/f", b"", b"x")];
    bed.unpack(&archive(within)).unwrap();
    assert_eq!(fs::read(bed.target().join("d/f")).unwrap(), b"x");
}

#[test]
fn here_files_are_plain_and_the_users_own() {
    let bed = Bed::new();
    let bytes = archive(&[(EntryType::Fifo, b"fifo", b"", b"")]);
    assert!(unpack(&bytes[..], &bed.target(), HERE).is_err());
    let from = tempfile::tempdir().unwrap();
    fs::write(from.path().join("f"), "x").unwrap();
    chown(from.path().join("f"), Some(7), Some(7)).unwrap();
    fs::set_permissions(from.path().join("f"), Permissions::from_mode(0o4755)).unwrap();
    unpack(&packed(from.path())[..], &bed.target(), HERE).unwrap();
    let metadata = fs::metadata(bed.target().join("f")).unwrap();
    assert_eq!((metadata.mode() & 0o7777, metadata.uid()), (0o755, nix::unistd::getuid().as_raw()));
}

#[test]
fn what_breaks_off_leaves_no_half_file() {
    let bed = Bed::new();
    let whole = archive(&[(EntryType::Regular, b"f", b"", &[7; 100_000])]);
    bed.refuses(&whole[..50_000], "ends in the middle");
    assert!(!bed.target().join("f").exists());
    struct Failing<'a>(&'a [u8]);
    impl Read for Failing<'_> {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            if self.0.is_empty() {
                return Err(io::Error::other("unplugged"));
            }
            self.0.read(into)
        }
    }
    let error = unpack(Failing(&whole[..50_000]), &bed.target(), AS_IT_IS).unwrap_err();
    assert!(matches!(&error, Error::Stream(cause) if cause.to_string() == "unplugged"), "{error}");
    assert!(!bed.target().join("f").exists());
}

#[test]
fn descriptions_without_an_end_are_refused() {
    let long = vec![b'x'; 2 << 20];
    for kind in [EntryType::GNULongName, EntryType::GNULongLink, EntryType::XHeader] {
        let bed = Bed::new();
        bed.refuses(&archive(&[(kind, b"n", b"", &long)]), "too long");
    }
    let mut header = Header::new_gnu();
    header.as_old_mut().name[..1].copy_from_slice(b"s");
    header.set_entry_type(EntryType::GNUSparse);
    header.set_mode(0o644);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header.set_size(0);
    let gnu = header.as_gnu_mut().unwrap();
    gnu.sparse[0].set_offset(1 << 60);
    gnu.sparse[0].set_length(0);
    gnu.set_real_size(1 << 60);
    header.set_cksum();
    Bed::new().refuses(header.as_bytes(), "sparse");
    let bed = Bed::new();
    bed.refuses(b"this is no archive".repeat(100).as_slice(), "not a tar archive");
    assert_eq!(bed.unpack(b"").unwrap(), Counts::default());
}

#[test]
fn a_file_that_changes_meanwhile_does_not_break_the_archive() {
    let (from, to) = (tempfile::tempdir().unwrap(), Bed::new());
    let path = from.path().join("growing");
    fs::write(&path, vec![1; 1 << 20]).unwrap();
    fs::write(from.path().join("later"), "later").unwrap();
    /// Changes the file as soon as the archive begins.
    struct Meddling<'a>(Vec<u8>, &'a Path, u64);
    impl io::Write for Meddling<'_> {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            File::options().write(true).open(self.1)?.set_len(self.2)?;
            self.0.write(bytes)
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    for length in [3 << 20, 100_000] {
        let mut meddling = Meddling(Vec::new(), &path, length);
        pack(from.path(), &mut meddling, Pack::default()).unwrap();
        to.unpack(&meddling.0).unwrap();
        assert_eq!(fs::read(to.target().join("later")).unwrap(), b"later");
        fs::write(&path, vec![1; 1 << 20]).unwrap();
    }
}

proptest! {
    #[test]
    fn any_bytes_are_an_archive_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..2048)) {
        let bed = Bed::new();
        drop(bed.unpack(&bytes));
    }

    #[test]
    fn damage_stays_within(at in 0_usize..4096, byte: u8) {
        let from = tempfile::tempdir().unwrap();
        fs::create_dir(from.path().join("d")).unwrap();
        fs::write(from.path().join("d/f"), "some text").unwrap();
        symlink("d", from.path().join("s")).unwrap();
        let mut bytes = packed(from.path());
        let at = at % bytes.len();
        bytes[at] = byte;
        let bed = Bed::new();
        drop(bed.unpack(&bytes));
        let names = fs::read_dir(bed.directory.path()).unwrap().count();
        prop_assert_eq!(names, 2);
    }
}
