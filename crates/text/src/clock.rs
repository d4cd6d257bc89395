//! `strftime` for templates that print today's date. Time is UTC: what a template prints should not depend on where
//! the server stands.

use std::time::{SystemTime, UNIX_EPOCH};

const DAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
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

/// Formats the time that it is now.
pub(crate) fn strftime_now(format: &str) -> String {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
    strftime(format, seconds)
}

/// Formats `seconds` since 1970 by C's letters; one that is not known stays as it is.
fn strftime(format: &str, seconds: u64) -> String {
    let (day, second) = (seconds / 86_400, seconds % 86_400);
    let (year, month, date) = civil(day);
    let (hour, minute) = (second / 3_600, second / 60 % 60);
    let (month_name, day_name) = (MONTHS[month as usize - 1], DAYS[(day + 4) as usize % 7]);
    let hour12 = (hour + 11) % 12 + 1;
    let mut out = String::new();
    let mut letters = format.chars();
    while let Some(c) = letters.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let mut letter = letters.next().unwrap_or('%');
        let bare = letter == '-'; // glibc's flag: no padding
        if bare {
            letter = letters.next().unwrap_or('-');
        }
        let two = |n: u64| if bare { n.to_string() } else { format!("{n:02}") };
        out.push_str(&match letter {
            'Y' => year.to_string(),
            'y' => two(year % 100),
            'm' => two(month),
            'd' => two(date),
            'e' => format!("{date:2}"),
            'H' => two(hour),
            'I' => two(hour12),
            'M' => two(minute),
            'S' => two(second % 60),
            'p' => (if hour < 12 { "AM" } else { "PM" }).to_owned(),
            'B' => month_name.to_owned(),
            'b' => month_name[..3].to_owned(),
            'A' => day_name.to_owned(),
            'a' => day_name[..3].to_owned(),
            'F' => format!("{year}-{month:02}-{date:02}"),
            'T' => format!("{hour:02}:{minute:02}:{:02}", second % 60),
            'Z' => "UTC".to_owned(),
            'z' => "+0000".to_owned(),
            '%' => "%".to_owned(),
            other => format!("%{other}"),
        });
    }
    out
}

/// Year, month (1 to 12) and day (1 to 31) of a count of days since 1970, in the Gregorian calendar. Years are counted
/// from March, so that the leap day comes last; 146,097 days are 400 years.
fn civil(day: u64) -> (u64, u64, u64) {
    let day = day + 719_468; // since 0000-03-01
    let (era, day) = (day / 146_097, day % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153; // 0 is March
    let date = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (era * 400 + year + u64::from(month <= 2), month, date)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates() {
        assert_eq!(strftime("%A %d %B %Y %H:%M:%S", 0), "Thursday 01 January 1970 00:00:00");
        assert_eq!(strftime("%a %-d %b %y %I:%M %p", 951_827_696), "Tue 29 Feb 00 12:34 PM");
        assert_eq!(strftime("%F %T", 4_102_444_799), "2099-12-31 23:59:59");
        assert_eq!(strftime("100%% %q %", 0), "100% %q %");
    }

    #[test]
    fn every_day_follows_the_one_before() {
        let mut last = civil(0);
        for day in 1..150_000 {
            let now = civil(day);
            let next = (last.0, last.1, last.2 + 1);
            let first = if last.1 == 12 { (last.0 + 1, 1, 1) } else { (last.0, last.1 + 1, 1) };
            assert!(now == next || (now == first && last.2 >= 28), "{last:?} then {now:?}");
            last = now;
        }
        assert_eq!(last, (2380, 9, 7));
    }
}
