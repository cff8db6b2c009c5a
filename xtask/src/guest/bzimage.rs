//! Takes the ELF kernel (`vmlinux`) out of a compressed boot image (`vmlinuz`, the bzImage format).
//!
//! The place of the payload comes from the boot header, and the result has to have the length that
//! the image states. Knows LZ4 payloads only, which is what Debian's cloud kernel has; anything
//! else is refused by name. Keeps every segment, so also the PVH note.

use anyhow::{Context, Result, bail, ensure};

const BOOT_MAGIC: (usize, &[u8]) = (0x202, b"HdrS");
const SETUP_SECTORS: usize = 0x1f1;
const PAYLOAD_OFFSET: usize = 0x248;
const PAYLOAD_LENGTH: usize = 0x24c;
const SECTOR: usize = 512;
const LZ4_LEGACY_MAGIC: [u8; 4] = [0x02, 0x21, 0x4c, 0x18];
/// Most that one block of the legacy frame holds when unpacked.
const LZ4_BLOCK: usize = 8 << 20;
/// Most that is unpacked, whatever an image states.
const KERNEL_MAX: usize = 512 << 20;
const ELF_MAGIC: &[u8] = b"\x7fELF";

/// The ELF kernel inside a boot image.
pub fn vmlinux(image: &[u8]) -> Result<Vec<u8>> {
    let payload = payload(image).context("this is not a Linux boot image (bzImage)")?;
    ensure!(payload.len() > 8, "the boot image has no payload");
    let (frame, stated) = payload.split_at(payload.len() - 4);
    let stated = u32::from_le_bytes(stated.try_into()?) as usize;
    ensure!(stated <= KERNEL_MAX, "the boot image states a kernel of {stated} bytes");
    let kernel = unpack(frame, stated)?;
    ensure!(
        kernel.len() == stated,
        "the kernel unpacks to {} bytes, but its image states {stated}",
        kernel.len()
    );
    ensure!(kernel.starts_with(ELF_MAGIC), "what the boot image holds is not an ELF kernel");
    Ok(kernel)
}

fn payload(image: &[u8]) -> Option<&[u8]> {
    let (at, magic) = BOOT_MAGIC;
    if image.get(at..at + magic.len())? != magic {
        return None;
    }
    let setup = match *image.get(SETUP_SECTORS)? {
        0 => 4,
        sectors => usize::from(sectors),
    };
    let start = (setup + 1) * SECTOR + word(image, PAYLOAD_OFFSET)?;
    image.get(start..start.checked_add(word(image, PAYLOAD_LENGTH)?)?)
}

fn word(image: &[u8], at: usize) -> Option<usize> {
    let bytes = image.get(at..at + 4)?.try_into().ok()?;
    usize::try_from(u32::from_le_bytes(bytes)).ok()
}

fn unpack(frame: &[u8], stated: usize) -> Result<Vec<u8>> {
    let Some(mut rest) = frame.strip_prefix(&LZ4_LEGACY_MAGIC) else {
        bail!("the kernel is compressed by {}, only LZ4 is supported", compressor(frame));
    };
    let mut kernel = Vec::with_capacity(stated);
    while let Some((length, after)) = rest.split_first_chunk::<4>() {
        let length = usize::try_from(u32::from_le_bytes(*length))?;
        ensure!(length <= after.len(), "the boot image is cut off inside a block");
        let (block, after) = after.split_at(length);
        let block = lz4_flex::block::decompress(block, LZ4_BLOCK).with_context(|| {
            format!("the block at byte {} of the kernel is damaged", kernel.len())
        })?;
        kernel.extend_from_slice(&block);
        ensure!(kernel.len() <= stated, "the kernel is longer than its image states");
        rest = after;
    }
    Ok(kernel)
}

fn compressor(frame: &[u8]) -> &'static str {
    match frame {
        [0x1f, 0x8b, ..] => "gzip",
        [0x28, 0xb5, 0x2f, 0xfd, ..] => "zstd",
        [0xfd, b'7', b'z', ..] => "xz",
        [b'B', b'Z', b'h', ..] => "bzip2",
        _ => "an unknown program",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(payload: &[u8]) -> Vec<u8> {
        let mut image = vec![0; 2 * SECTOR];
        image[SETUP_SECTORS] = 1;
        image[0x202..0x206].copy_from_slice(b"HdrS");
        let length = u32::try_from(payload.len()).unwrap();
        image[PAYLOAD_LENGTH..PAYLOAD_LENGTH + 4].copy_from_slice(&length.to_le_bytes());
        image.splice(2 * SECTOR.., payload.iter().copied());
        image
    }

    fn packed(kernel: &[u8], stated: usize) -> Vec<u8> {
        let block = lz4_flex::block::compress(kernel);
        let mut payload = LZ4_LEGACY_MAGIC.to_vec();
        payload.extend(u32::try_from(block.len()).unwrap().to_le_bytes());
        payload.extend(block);
        payload.extend(u32::try_from(stated).unwrap().to_le_bytes());
        payload
    }

    fn error(image: &[u8]) -> String {
        format!("{:#}", vmlinux(image).unwrap_err())
    }

    #[test]
    fn the_kernel_comes_out_whole() {
        let mut kernel = ELF_MAGIC.to_vec();
        kernel.resize(5000, 7);
        assert_eq!(vmlinux(&image(&packed(&kernel, 5000))).unwrap(), kernel);
    }

    #[test]
    fn what_is_no_boot_image_is_refused() {
        assert!(error(b"").contains("not a Linux boot image"));
        assert!(error(&[0; 4096]).contains("not a Linux boot image"));
        assert!(error(ELF_MAGIC).contains("not a Linux boot image"));
    }

    #[test]
    fn a_payload_beyond_the_end_is_refused() {
        let mut image = image(&packed(b"\x7fELF", 4));
        image[PAYLOAD_LENGTH..PAYLOAD_LENGTH + 4].copy_from_slice(&u32::MAX.to_le_bytes());
        assert!(error(&image).contains("not a Linux boot image"));
    }

    #[test]
    fn other_compressors_are_named() {
        assert!(error(&image(&[0x28, 0xb5, 0x2f, 0xfd, 0, 0, 0, 0, 0])).contains("zstd"));
        assert!(error(&image(&[0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0])).contains("gzip"));
    }

    #[test]
    fn damage_is_noticed() {
        let kernel = [ELF_MAGIC, &[1; 100]].concat();
        assert!(error(&image(&packed(&kernel, 105))).contains("states 105"));
        assert!(error(&image(&packed(&kernel, 50))).contains("longer than"));
        assert!(error(&image(&packed(&[1; 100], 100))).contains("not an ELF kernel"));
        let mut cut = packed(&kernel, kernel.len());
        cut[4] = 255;
        assert!(error(&image(&cut)).contains("cut off"));
    }
}
