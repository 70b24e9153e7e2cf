# Waits for the end of the process that started it, and removes what a node leaves behind.
read -r line
folder=$1
cgroup=$2
device=$3

ip link delete "$device" 2> /dev/null
# The last processes may take a moment to end, and write files until then.
tries=0
while [ "$tries" -lt 200 ]; do
    groups=$(find /sys/fs/cgroup -mindepth 1 -maxdepth 2 -type d -name "$cgroup")
    for group in $groups; do
        find "$group" -depth -type d -exec rmdir {} \; 2> /dev/null
    done
    rm -rf "$folder" 2> /dev/null
    if [ -z "$groups" ] && [ ! -e "$folder" ]; then
        exit 0
    fi
    tries=$((tries + 1))
    sleep 0.05
done
exit 1
