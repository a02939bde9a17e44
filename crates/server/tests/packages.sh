# Packages of others for the tests in the folders beside this file, which source it. Each is installed into a folder of
# its own below target/clients, unless it exists; for what cannot be installed a line says `skipped: ...`.
mkdir -p "${CARGO_TARGET_DIR:-../../../../target}/clients"
clients=$(realpath "${CARGO_TARGET_DIR:-../../../../target}/clients")
skipped=0 folder=$(mktemp -d)

skip() { echo "skipped: $1" && skipped=$((skipped + 1)); }

# Installs packages into a folder of their own, $place, unless it exists. The folder is appended to the command.
install() {
  place=$clients/${1//[ \/]/+}
  [ -d "$place" ] && return
  rm -rf "$place.new"
  timeout 240 "${@:2}" "$place.new" > "$folder/install" 2>&1 && mv "$place.new" "$place"
}

# Skips packages that could not be installed, with the reason in one line.
not_installed() {
  local why
  why=$(grep -iE -m 3 '^(npm )?error|^ *cause:' "$folder/install" | paste -sd ' ' | cut -c -300) || true
  skip "$1 cannot be installed (${why:-no output in 240 s})"
}
