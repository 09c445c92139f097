//! Names from files in messages.

/// A name from the file as messages show it: control characters spelled out, and not too long.
pub fn shown(name: &str) -> String {
    let mut text: String = name.chars().take(80).flat_map(char::escape_debug).collect();
    if name.chars().nth(80).is_some() {
        text += "..";
    }
    format!("`{text}`")
}
