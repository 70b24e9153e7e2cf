# The first process of a node, in its own namespaces: all processes started here end with it.
folder=$1
kubelet=$2

# These programs write some files to fixed paths. Mounts keep the machine's own files unchanged.
for place in /run /var/lib /var/log; do
    case $folder in
    "$place"/*)
        echo "a node cannot be in $folder: set TMPDIR to a folder outside of $place" >&2
        exit 1
        ;;
    esac
    mount -t tmpfs node "$place"
done

containerd --config "$folder/containerd.toml" > "$folder/containerd.log" 2>&1 &
until ctr --address "$folder/cri.sock" version > /dev/null 2>&1; do
    kill -0 $!
    sleep 0.1
done
ctr --address "$folder/cri.sock" --namespace k8s.io images import --snapshotter native "$folder/image.tar" > /dev/null

# The testbed writes this file last, after it has created eth0.
until [ -e "$folder/address" ]; do
    sleep 0.05
done
read -r inside outside < "$folder/address"
ip link set lo up
ip address add "$inside/30" dev eth0
ip link set eth0 up
ip route add default via "$outside"

"$kubelet" --config "$folder/kubelet.json" --kubeconfig "$folder/kubeconfig" \
    --hostname-override "$0" --node-ip "$inside" \
    --root-dir "$folder/kubelet" --cert-dir "$folder/pki" > "$folder/kubelet.log" 2>&1 &
echo $! > "$folder/kubelet.pid"
wait
