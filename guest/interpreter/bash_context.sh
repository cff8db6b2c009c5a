# What a bash context starts with; the server sends it as the shell's first command.
#
# The shell is an interactive one that reads its commands from a pipe, because only an interactive
# shell abandons a whole command at SIGINT and then goes on with its next one. An execution is three
# commands: __ramet_begin with variables of this execution, the code in `eval`, __ramet_end with its
# status. The first argument of this file is the descriptor to which events go, as lines of JSON.

set +mH +o history
PS1= PS2=
unset HISTFILE

__ramet_events=$1
__ramet_names=()
declare -A __ramet_old=()

__ramet_begin() {
    __ramet_names=()
    __ramet_old=()
    while (($# >= 2)); do
        __ramet_names+=("$1")
        if [[ -v $1 ]]; then __ramet_old[$1]=${!1}; fi
        export "$1=$2"
        shift 2
    done
}

__ramet_end() {
    local status=$1 name
    for name in "${__ramet_names[@]}"; do
        if [[ -v __ramet_old[$name] ]]; then export "$name=${__ramet_old[$name]}"; else unset "$name"; fi
    done
    if ((status != 0)); then
        printf '{"type":"error","name":"ExitError","value":"%d","traceback":"the last command ended with status %d"}\n' \
            "$status" "$status" >&"$__ramet_events"
    fi
    printf '{"type":"done"}\n' >&"$__ramet_events"
}

# An interactive shell says goodbye, which nobody asked for.
exit() { builtin exit "${1:-$?}" 2>/dev/null; }

printf '{"type":"ready"}\n' >&"$__ramet_events"
