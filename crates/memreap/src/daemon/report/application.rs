// SPDX-License-Identifier: GPL-2.0-only
//! The name that people know an application by, from the unit that a desktop has started it in.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;

/// Where applications are described, in the order of preference.
const FOLDERS: [&str; 4] = [
    "/usr/local/share/applications",
    "/usr/share/applications",
    "/var/lib/flatpak/exports/share/applications",
    "/var/lib/snapd/desktop/applications",
];
/// The most that is read of a description.
const MAX_FILE_BYTES: u64 = 256 << 10;

/// Returns the name of the application that runs in this unit, if a desktop has started it.
pub(super) fn name(unit: &str) -> Option<String> {
    let id = id(unit)?;
    FOLDERS.iter().find_map(|folder| {
        let mut text = String::new();
        let path = Path::new(folder).join(format!("{id}.desktop"));
        File::open(path).ok()?.take(MAX_FILE_BYTES).read_to_string(&mut text).ok()?;
        name_in(&text).map(str::to_owned)
    })
}

/// The ID of an application in the name of its unit: "app-LAUNCHER-ID-RANDOM.scope" or
/// "app-LAUNCHER-ID@RANDOM.service", the launcher and the random part of a service being optional (systemd's
/// desktop environment integration).
fn id(unit: &str) -> Option<String> {
    let name = unit.strip_prefix("app-")?;
    let name = match name.strip_suffix(".scope") {
        Some(name) => name.rsplit_once('-')?.0,
        None => name.strip_suffix(".service")?.split('@').next()?,
    };
    // Hyphens of the ID itself are escaped; and the unit is escaped once more on its way here.
    let id = name.rsplit('-').next()?.replace(r"\\x2d", "-").replace(r"\x2d", "-");
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    (!id.is_empty() && !id.starts_with('.') && id.chars().all(is_plain)).then_some(id)
}

/// `Name` of the group "Desktop Entry", not translated.
fn name_in(text: &str) -> Option<&str> {
    let entry = text.lines().skip_while(|line| line.trim() != "[Desktop Entry]").skip(1);
    let mut entry = entry.take_while(|line| !line.starts_with('['));
    let value = entry.find_map(|line| line.strip_prefix("Name")?.trim_start().strip_prefix('='))?.trim();
    (!value.is_empty()).then_some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_of_desktops_have_an_id() {
        for (unit, expected) in [
            ("app-gnome-firefox-4711.scope", Some("firefox")),
            ("app-gnome-org.gnome.Terminal-4711.scope", Some("org.gnome.Terminal")),
            ("app-flatpak-org.mozilla.firefox-123.scope", Some("org.mozilla.firefox")),
            ("app-org.kde.konsole@0a1b2c.service", Some("org.kde.konsole")),
            ("app-org.kde.konsole.service", Some("org.kde.konsole")),
            (r"app-gnome-libreoffice\x2dwriter-9.scope", Some("libreoffice-writer")),
            (r"app-gnome-libreoffice\\x2dwriter-9.scope", Some("libreoffice-writer")),
            ("app-firefox.scope", None),
            ("session-2.scope", None),
            ("nginx.service", None),
            ("app-..-1.scope", None),
            (r"app-a\x2f..\x2fb-1.scope", None),
            ("app-/etc/passwd-1.scope", None),
        ] {
            assert_eq!(id(unit).as_deref(), expected, "{unit}");
        }
        assert_eq!(name("app-there.is.none-1.scope"), None);
    }

    #[test]
    fn the_name_is_that_of_the_entry() {
        let text = "# comment\n[Desktop Action new]\nName=New Window\n[Desktop Entry]\nType=Application\n\
                    Name[de]=Feuerfuchs\nName = Fire fox \n[X]\nName=Other\n";
        assert_eq!(name_in(text), Some("Fire fox"));
        assert_eq!(name_in("Name=x\n"), None);
        assert_eq!(name_in("[Desktop Entry]\nName=\n"), None);
    }
}
