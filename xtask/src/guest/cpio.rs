//! Writes cpio archives in the `newc` format, which the kernel unpacks as initramfs.
//!
//! Everything belongs to root and has the time 0, so equal contents give equal archives. Refuses
//! files beyond 4 GiB, which the format cannot hold. The caller adds parents before children.

use std::io::{self, Write};

const DIRECTORY: u32 = 0o040_000;
const FILE: u32 = 0o100_000;
const CHARACTER_DEVICE: u32 = 0o020_000;
const TRAILER: &str = "TRAILER!!!";

/// An archive that is being written. Without [`Archive::finish`] it is not valid.
pub struct Archive<W> {
    out: W,
    written: usize,
    inode: u32,
}

struct Header {
    mode: u32,
    links: u32,
    device: (u32, u32),
}

impl<W: Write> Archive<W> {
    /// Start an archive.
    pub fn new(out: W) -> Self {
        Self { out, written: 0, inode: 0 }
    }

    /// Add a directory. The path has no leading slash.
    pub fn directory(&mut self, path: &str, permissions: u32) -> io::Result<()> {
        let header = Header { mode: DIRECTORY | permissions, links: 2, device: (0, 0) };
        self.entry(path, &header, &[])
    }

    /// Add a file.
    pub fn file(&mut self, path: &str, permissions: u32, content: &[u8]) -> io::Result<()> {
        let header = Header { mode: FILE | permissions, links: 1, device: (0, 0) };
        self.entry(path, &header, content)
    }

    /// Add a character device.
    pub fn device(
        &mut self,
        path: &str,
        permissions: u32,
        major: u32,
        minor: u32,
    ) -> io::Result<()> {
        let header =
            Header { mode: CHARACTER_DEVICE | permissions, links: 1, device: (major, minor) };
        self.entry(path, &header, &[])
    }

    /// Write the end mark and give the writer back.
    pub fn finish(mut self) -> io::Result<W> {
        self.inode = u32::MAX;
        self.entry(TRAILER, &Header { mode: 0, links: 1, device: (0, 0) }, &[])?;
        self.out.flush()?;
        Ok(self.out)
    }

    fn entry(&mut self, path: &str, header: &Header, content: &[u8]) -> io::Result<()> {
        let size = u32::try_from(content.len())
            .map_err(|_| io::Error::other(format!("{path} is too large for a cpio archive")))?;
        let name_size = u32::try_from(path.len() + 1).map_err(io::Error::other)?;
        self.inode = self.inode.wrapping_add(1);
        let (major, minor) = header.device;
        let fields = [
            self.inode,
            header.mode,
            0,
            0,
            header.links,
            0,
            size,
            0,
            0,
            major,
            minor,
            name_size,
            0,
        ];
        let mut head = String::from("070701");
        for field in fields {
            head.push_str(&format!("{field:08x}"));
        }
        self.put(head.as_bytes())?;
        self.put(path.as_bytes())?;
        self.put(&[0])?;
        self.pad()?;
        self.put(content)?;
        self.pad()
    }

    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.written += bytes.len();
        self.out.write_all(bytes)
    }

    fn pad(&mut self) -> io::Result<()> {
        let padding = self.written.next_multiple_of(4) - self.written;
        self.put(&[0; 3][..padding])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    fn sample() -> Vec<u8> {
        let mut archive = Archive::new(Vec::new());
        archive.directory("etc", 0o755).unwrap();
        archive.file("etc/motd", 0o644, b"hello").unwrap();
        archive.device("console", 0o600, 5, 1).unwrap();
        archive.finish().unwrap()
    }

    #[test]
    fn entries_are_laid_out_as_the_format_says() {
        let bytes = sample();
        assert_eq!(bytes.len() % 4, 0);
        // Header of 110 bytes, "etc\0", padding to 116; then the next magic.
        assert_eq!(&bytes[..6], b"070701");
        assert_eq!(&bytes[14..22], b"000041ed");
        assert_eq!(&bytes[110..114], b"etc\0");
        assert_eq!(&bytes[116..122], b"070701");
        // Second entry: size 5, name "etc/motd\0" (9 bytes), content on a multiple of four.
        assert_eq!(&bytes[116 + 54..116 + 62], b"00000005");
        assert_eq!(&bytes[236..241], b"hello");
    }

    #[test]
    fn equal_contents_give_equal_archives() {
        assert_eq!(sample(), sample());
    }

    #[test]
    fn the_cpio_program_reads_it() {
        let Ok(mut child) =
            Command::new("cpio").arg("-it").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()
        else {
            return; // cpio is not needed for anything else
        };
        child.stdin.take().unwrap().write_all(&sample()).unwrap();
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success());
        assert_eq!(String::from_utf8(output.stdout).unwrap(), "etc\netc/motd\nconsole\n");
    }
}
