#!/bin/sh
# Writes HAProxy's configuration for the nodes in a cluster: that of contrib/haproxy, with NODES servers whose names are those of
# the pods and whose addresses DNS knows.
#   kubernetes.sh HAPROXY_CFG FOLDER
#
# HAProxy takes tcp-ut, by which it finds calls that a lost node has never got, only on a line with an address. So each server begins
# with one that nothing has, and gets its name right after the start, from HAProxy itself.
set -eu
: "${NODES:?the number of nodes}" "${SERVICE:?the headless service of the nodes}"
# As the first server line of that configuration has them.
options=$(sed -n '/^    server n1 /{s/^    server n1 [^ ]* //p;q}' "$1")
servers=
number=0
while [ "$number" -lt "$NODES" ]; do
    servers="$servers    server isolator-$number 192.0.2.1:8000 $options resolvers cluster\\n"
    number=$((number + 1))
done
# The first server line of each list becomes all of them, and the others go. A pod has its user from the beginning.
sed -e "s/^    server n1 .*/$servers/" -e '/^    server n[0-9]/d' -e 's,^    log /dev/log local0,    log stdout format raw local0,' \
    -e '/^    # What reads requests/d' -e '/^    user haproxy$/d' -e '/^    group haproxy$/d' \
    -e "s,^global,&\n    lua-load $2/names.lua," "$1" >"$2/haproxy.cfg"
cat >>"$2/haproxy.cfg" <<END

resolvers cluster
    parse-resolv-conf
    hold valid 1s
    hold obsolete 1s
    # A pod that is gone has no name. DNS that fails for a while says nothing of a pod: HAProxy keeps its address, and checks its health.
    hold nx 5s
    hold other 1h
    hold refused 1h
    hold timeout 1h
    timeout resolve 1s
    timeout retry 500ms
END
cat >"$2/names.lua" <<END
-- Gives each server its name, of which DNS knows the address.
core.register_task(function()
    for backend, about in pairs(core.backends) do
        for server in pairs(about.servers) do
            local answer
            repeat
                local socket = core.tcp()
                socket:settimeout(5)
                if socket:connect("/run/haproxy/admin.sock") then
                    socket:send("set server " .. backend .. "/" .. server .. " fqdn " .. server .. ".$SERVICE\n")
                    answer = socket:receive("*l")
                end
                socket:close()
                if not answer then
                    core.msleep(100)
                end
            until answer
            core.Info(server .. " of " .. backend .. ": " .. answer)
        end
    end
end)
END
