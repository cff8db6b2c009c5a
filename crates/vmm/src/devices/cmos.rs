//! The CMOS clock, as far as Linux looks at it at boot: the time, never being updated.
//!
//! Without it the kernel polls for an update that never ends. Writes go to a small RAM (Linux leaves the
//! warm-reset vector there); alarms and interrupts do not exist.

use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

/// Registers.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Cmos {
    index: u8,
    ram: Vec<u8>,
}

impl Default for Cmos {
    fn default() -> Self {
        Self { index: 0, ram: vec![0; 128] }
    }
}

impl Cmos {
    /// Port 0x71.
    pub fn read(&self) -> u8 {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs());
        self.read_at(now)
    }

    fn read_at(&self, seconds: u64) -> u8 {
        let (year, month, day) = date(seconds / 86400);
        let value = match self.index {
            0x00 => seconds % 60,
            0x02 => seconds / 60 % 60,
            0x04 => seconds / 3600 % 24,
            0x06 => (seconds / 86400 + 4) % 7 + 1,
            0x07 => day,
            0x08 => month,
            0x09 => year % 100,
            0x32 => year / 100,
            0x0a => return 0x26, // no update in progress, 32768 Hz
            0x0b => return 0x02, // BCD, 24 hours
            0x0c => return 0x00,
            0x0d => return 0x80, // the battery is fine
            index => return self.ram[usize::from(index)],
        };
        u8::try_from(value / 10 * 16 + value % 10).unwrap_or(0)
    }

    /// Ports 0x70 and 0x71.
    pub fn write(&mut self, port: u16, value: u8) {
        if port == 0x70 {
            self.index = value & 0x7f;
        } else {
            self.ram[usize::from(self.index)] = value;
        }
    }
}

/// Year, month and day of a day since 1970 in the Gregorian calendar.
fn date(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468; // since 0000-03-01
    let era = days / 146_097;
    let of_era = days % 146_097;
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let day_of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    (year_of_era + era * 400 + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates() {
        assert_eq!(date(0), (1970, 1, 1));
        assert_eq!(date(19_782), (2024, 2, 29));
        assert_eq!(date(20_000), (2024, 10, 4));
    }

    #[test]
    fn the_time_is_bcd() {
        let mut cmos = Cmos::default();
        let mut at = |index| {
            cmos.write(0x70, index);
            cmos.read_at(1_709_210_096) // 2024-02-29 12:34:56, a Thursday
        };
        assert_eq!(
            [0x32, 9, 8, 7, 4, 2, 0, 6].map(&mut at),
            [0x20, 0x24, 2, 0x29, 0x12, 0x34, 0x56, 5]
        );
    }
}
