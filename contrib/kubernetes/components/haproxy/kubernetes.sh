#!/bin/sh
# Writes HAProxy's configuration for the nodes in a cluster: that of contrib/haproxy, with NODES servers whose names are those of
# the pods and whose addresses DNS knows.
#   kubernetes.sh HAPROXY_CFG >haproxy.cfg
set -eu
: "${NODES:?the number of nodes}" "${SERVICE:?the headless service of the nodes}"
servers=
number=0
while [ "$number" -lt "$NODES" ]; do
    name=isolator-$number
    servers="$servers    server $name $name.$SERVICE:8000 resolvers cluster init-addr none\\n"
    number=$((number + 1))
done
# The first server line of each list becomes all of them, and the others go.
sed -e "s/^    server n1 .*/$servers/" -e '/^    server n[0-9]/d' -e 's,^    log /dev/log local0,    log stdout format raw local0,' "$1"
cat <<END

resolvers cluster
    parse-resolv-conf
    hold valid 1s
    hold obsolete 1s
    hold nx 1s
    hold other 1s
    timeout resolve 1s
    timeout retry 500ms
END
