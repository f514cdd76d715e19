#!/bin/sh
# Makes keys for a server and for PODS pods of COUNT clients each, and prints the Secrets and ConfigMaps that the
# manifests ask for:
#
#   k8s/make-keys.sh PODS COUNT [FOLDER] | kubectl apply --server-side --namespace unstale --filename -
#   k8s/make-keys.sh --injector PODS COUNT [FOLDER] | ...     for the component lossy, too
#
# Keys that are in FOLDER (keys) already are kept, so run it again when there are more pods. Keep the folder where
# nobody else reads it: it is where keys are revoked.
set -eu
injector=
if [ "${1-}" = --injector ]; then
    injector=injector
    shift
fi
if [ $# -lt 2 ]; then
    echo "make-keys.sh: PODS and COUNT are not given, expected the Job's completions and its UNSTALE_CLIENT__COUNT" >&2
    exit 2
fi
pods=$1 count=$2 folder=${3:-keys}

new() { # NAME [--clients IDS]: unless it is there
    if [ ! -e "$folder/$1.key_secret" ]; then
        unstale keys new --folder "$folder" "$@" >&2
    elif [ $# -eq 3 ] && ! grep -qF "clients = \"$3\"" "$folder/admitted/$1.key"; then
        echo "make-keys.sh: $folder/admitted/$1.key is not for the clients $3; name another folder" >&2
        exit 2
    fi
}
object() { # KIND NAME FILES
    echo "---"
    kubectl create "$@" --dry-run=client --output yaml
}

new server
set -- # the clients' files
pod=0
while [ "$pod" -lt "$pods" ]; do
    new "clients-$pod" --clients "$((pod * count))-$((pod * count + count - 1))"
    set -- "$@" "--from-file=$folder/clients-$pod.key_secret"
    pod=$((pod + 1))
done
[ -z "$injector" ] || new injector

object secret generic unstale-server-key "--from-file=$folder/server.key_secret"
object secret generic unstale-client-keys "$@"
object configmap unstale-admitted "--from-file=$folder/admitted"
if [ -n "$injector" ]; then
    object secret generic unstale-injector-key "--from-file=$folder/injector.key_secret"
    object configmap unstale-injector-public-key "--from-file=$folder/injector.key"
fi
