# What the scripts share: words for the user, and packages that are missing. Sourced, not run.

say() { printf '\n== %s\n' "$*" >&2; }

has_postgres() {
    local folder
    for folder in ${PATH//:/ } "$(pg_config --bindir 2>/dev/null || true)" /usr/lib/postgresql/*/bin; do
        if [ -n "$folder" ] && [ -x "$folder/initdb" ] && [ -x "$folder/postgres" ]; then return 0; fi
    done
    return 1
}

install_packages() {
    local root=()
    if ! command -v apt-get >/dev/null; then
        echo "$0: please install these with your system's package manager: $*" >&2
        exit 1
    fi
    if [ "$(id -u)" -ne 0 ]; then
        if ! command -v sudo >/dev/null; then
            echo "$0: please install $* as root; there is no sudo here" >&2
            exit 1
        fi
        root=(sudo)
    fi
    say "installing $*"
    "${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get update -q
    "${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "$@"
}

# Installs what of these is missing: any of cc, cxx, postgres, pgbouncer, faketime, venv, node.
ensure() {
    local need missing=()
    for need in "$@"; do
        case $need in
            # SQLite is compiled from its source, and Rust links with cc.
            cc) command -v cc >/dev/null || missing+=(gcc libc6-dev) ;;
            # libFuzzer is compiled from its source.
            cxx) command -v c++ >/dev/null || missing+=(g++ libc6-dev) ;;
            postgres) has_postgres || missing+=(postgresql) ;;
            pgbouncer) PATH="$PATH:/usr/sbin" command -v pgbouncer >/dev/null || missing+=(pgbouncer) ;;
            # Moves clocks; a library that is preloaded.
            faketime) compgen -G '/usr/lib*/faketime/libfaketimeMT.so.1' >/dev/null ||
                compgen -G '/usr/lib/*/faketime/libfaketimeMT.so.1' >/dev/null || missing+=(faketime) ;;
            # npm is a package of its own in Debian, and part of Node's elsewhere.
            node) { command -v node && command -v npm; } >/dev/null || missing+=(nodejs npm) ;;
            venv) python3 -c 'import ensurepip, venv' 2>/dev/null || missing+=(python3 python3-venv) ;;
        esac
    done
    if [ ${#missing[@]} -gt 0 ]; then install_packages "${missing[@]}"; fi
}
