"""Completion scripts: each asks `kubectl-netaware __complete`, so that there is one place that knows the answers."""

from __future__ import annotations

SHELLS = ("bash", "zsh", "fish", "kubectl")

_SCRIPTS = {
    "bash": """\
# kubectl-netaware completion for bash: source <(kubectl-netaware completion bash)
_kubectl_netaware() {
  local IFS=$'\\n' line
  COMPREPLY=()
  while read -r line; do
    [[ $line == :* ]] || COMPREPLY+=("${line%%$'\\t'*}")
  done < <(kubectl-netaware __complete "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
}
complete -o default -F _kubectl_netaware kubectl-netaware
""",
    "zsh": """\
#compdef kubectl-netaware
# kubectl-netaware completion for zsh: source <(kubectl-netaware completion zsh)
_kubectl_netaware() {
  local -a found
  local line
  while IFS= read -r line; do
    [[ $line == :* ]] || found+=("${${line%%$'\\t'*}//:/\\\\:}${${line#*$'\\t'}:+:${line#*$'\\t'}}")
  done < <(kubectl-netaware __complete "${words[@]:1:$((CURRENT-1))}" 2>/dev/null)
  _describe 'kubectl-netaware' found
}
compdef _kubectl_netaware kubectl-netaware
""",
    "fish": """\
# kubectl-netaware completion for fish: kubectl-netaware completion fish | source
complete -c kubectl-netaware -f -a '(kubectl-netaware __complete (commandline -opc)[2..] (commandline -ct) 2>/dev/null | string match -v -r "^:")'
""",
    "kubectl": """\
#!/bin/sh
# Save as kubectl_complete-netaware on PATH, executable; kubectl 1.26 or later asks it for completions.
exec kubectl-netaware __complete "$@"
""",
}


def script(shell: str) -> str:
    """The completion script of one of `SHELLS`."""
    return _SCRIPTS[shell]
