#!/usr/bin/env bash
# `./dev bare`: on a fresh, minimal Debian 12 (debootstrap into a temporary folder), a clone of HEAD must install, build
# and test itself by ./dev test alone. Needs root for chroot and mounts. EVERSTEP_BARE_KEEP=1 keeps the folder.
#
# Where packages come from is this machine's business: its Debian sources and apt's own settings are copied over.
set -euo pipefail

die() {
  printf 'bare: %s\n' "$*" >&2
  exit 1
}

cd -- "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/.."
((EUID == 0)) || die "needs root; run: sudo ./dev bare"
command -v debootstrap >/dev/null || die "needs debootstrap; run: apt-get install debootstrap"
[[ -z $(git status --porcelain) ]] || echo "bare: the work tree has changes; what is tested is HEAD alone"

folder=$(mktemp -d "${TMPDIR:-/var/tmp}/everstep-bare-XXXXXX")
mounts=()
clean_up() {
  local i left=0
  for ((i = ${#mounts[@]} - 1; i >= 0; i--)); do
    umount -- "${mounts[i]}" || umount --lazy -- "${mounts[i]}" || left=1
  done
  # Never delete through a mount that is still there.
  if ((left)) || [[ -n ${EVERSTEP_BARE_KEEP:-} ]]; then
    echo "bare: kept $folder"
  else
    rm -rf --one-file-system -- "$folder"
  fi
}
trap clean_up EXIT
trap 'exit 130' INT TERM

# shellcheck disable=SC2016
mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Codename: bookworm' 'Component: main' 2>/dev/null | head -n 1)
echo "bare: debootstrap into $folder"
debootstrap --variant=minbase bookworm "$folder" "${mirror:-http://deb.debian.org/debian}" >"$folder.log" 2>&1 ||
  die "debootstrap failed; see $folder.log"
rm -f -- "$folder.log"

copied=0
for file in /etc/apt/sources.list /etc/apt/sources.list.d/*.{list,sources}; do
  if [[ -f $file ]] && grep -Eq '^(deb |Suites:).*[[:space:]]bookworm(-updates|-security)?([[:space:]]|$)' "$file"; then
    if ((!copied)); then rm -f -- "$folder/etc/apt/sources.list"; fi
    cp -- "$file" "$folder${file}"
    copied=1
  fi
done
apt-config dump 2>/dev/null | grep -E '^Acquire::(http|https|Check)' >"$folder/etc/apt/apt.conf.d/90host" || true

printf '127.0.0.1 localhost\n' >"$folder/etc/hosts"  # an installer's work, not debootstrap's

mount -t proc proc "$folder/proc" && mounts+=("$folder/proc")
# The shm:// transport and POSIX semaphores; a plain folder does where a tmpfs may not be mounted.
if mount -t tmpfs -o mode=1777 tmpfs "$folder/dev/shm" 2>/dev/null; then
  mounts+=("$folder/dev/shm")
else
  chmod 1777 "$folder/dev/shm"
fi

git clone --quiet --no-local . "$folder/everstep"
environment=(PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8)
for name in CI EVERSTEP_JOBS http_proxy https_proxy no_proxy OPENBLAS_CORETYPE OPENBLAS_L2_SIZE; do
  if [[ -n ${!name:-} ]]; then environment+=("$name=${!name}"); fi
done
status=0
chroot "$folder" env -i "${environment[@]}" /everstep/dev test </dev/null || status=$?
if ((status == 0)); then echo "bare: a fresh Debian 12 builds and tests HEAD"; else die "./dev test failed (status $status)"; fi
