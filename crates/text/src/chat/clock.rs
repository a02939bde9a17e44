//! `strftime_now`: today's date, which some templates write into the system message.
//!
//! The time is UTC; transformers uses the local time zone, which would need a dependency. Days are counted with the
//! civil-calendar algorithm of Howard Hinnant. Directives that depend on a locale or a time zone are copied unchanged.

use std::fmt::Write;
use std::time::{SystemTime, UNIX_EPOCH};

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];

/// Seconds since 1970, or 0 if the clock is set before that.
pub(super) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Writes a time, in seconds since 1970 and in UTC, the way Python's `strftime` does.
pub fn format(seconds: u64, pattern: &str) -> String {
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = civil(days);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    let weekday = ((days + 4) % 7) as usize;
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let before = [0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334][month as usize - 1];
    let of_year = before + day + u64::from(leap && month > 2);
    let hour_of_12 = (hour + 11) % 12 + 1;
    let (month_name, day_name) = (MONTHS[month as usize - 1], DAYS[weekday]);

    let mut text = String::new();
    let mut characters = pattern.chars();
    while let Some(character) = characters.next() {
        if character != '%' {
            text.push(character);
            continue;
        }
        let directive = characters.next();
        let written = match directive {
            Some('Y') => write!(text, "{year}"),
            Some('y') => write!(text, "{:02}", year % 100),
            Some('m') => write!(text, "{month:02}"),
            Some('B') => write!(text, "{month_name}"),
            Some('b' | 'h') => write!(text, "{}", &month_name[..3]),
            Some('d') => write!(text, "{day:02}"),
            Some('e') => write!(text, "{day:2}"),
            Some('j') => write!(text, "{of_year:03}"),
            Some('A') => write!(text, "{day_name}"),
            Some('a') => write!(text, "{}", &day_name[..3]),
            Some('w') => write!(text, "{weekday}"),
            Some('H') => write!(text, "{hour:02}"),
            Some('I') => write!(text, "{hour_of_12:02}"),
            Some('M') => write!(text, "{minute:02}"),
            Some('S') => write!(text, "{second:02}"),
            Some('p') => write!(text, "{}", if hour < 12 { "AM" } else { "PM" }),
            Some('F') => write!(text, "{year}-{month:02}-{day:02}"),
            Some('T') => write!(text, "{hour:02}:{minute:02}:{second:02}"),
            Some('s') => write!(text, "{seconds}"),
            Some('%') | None => write!(text, "%"),
            Some(other) => write!(text, "%{other}"),
        };
        written.expect("writing to a string cannot fail");
    }
    text
}

/// Year, month and day of a day counted from 1970-01-01. Internally years begin in March, so that leap days come last.
fn civil(days: u64) -> (u64, u64, u64) {
    let shifted = days + 719_468;
    let (era, of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::format;

    #[test]
    fn dates_are_python_s() {
        assert_eq!(format(0, "%A %d %B %Y %j %w"), "Thursday 01 January 1970 001 4");
        assert_eq!(
            format(1_709_210_096, "%a, %d %b %y %H:%M:%S %I%p %F %j"),
            "Thu, 29 Feb 24 12:34:56 12PM 2024-02-29 060"
        );
        assert_eq!(format(1_735_689_599, "%d %b %Y, day %j, %e"), "31 Dec 2024, day 366, 31");
        assert_eq!(format(951_868_800, "%Y-%m-%d %T"), "2000-03-01 00:00:00");
        assert_eq!(format(0, "100%% %Q %"), "100% %Q %");
    }
}
