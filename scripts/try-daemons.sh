#!/usr/bin/env bash
# try-daemons.sh: long jobs of programs that have much around them, on this machine: each is started as its users start it, beside a CUDA
# workload on the simulated driver, preempted and resumed. Its state, which is in its memory alone, must be carried on, and so must the
# workload's. What cannot be dumped must be refused at the start, by name and with a remedy. Prints a table. Needs root. Build first:
# make build sim workload tools
#
#   scripts/try-daemons.sh [--keep] [NAME...]     all, or some; --keep keeps the directory with all logs
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
. "$repo/scripts/try-common.sh"

names=(nohup tmux redis gunicorn uvicorn nginx node jvm mpirun dbus jupyter postgresql)
programs="tmux redis-server redis-cli gunicorn nginx node java mpirun dbus-daemon dbus-send jupyter python3 curl"
packages="tmux redis-server redis-tools gunicorn python3-uvicorn python3-uvloop nginx-light nodejs default-jdk-headless openmpi-bin
	dbus dbus-bin python3-ipykernel python3-jupyter-client jupyter-client jupyter-server postgresql curl python3"

state() { true; }

# Each program has a script that starts it, as NAME_start, and a question, as NAME_ask, whose answer counts up or stays the same. They run in
# $work, with $port to listen on.
count='n=0; while true; do n=$((n + 1)); echo $n >n.new; mv n.new n; sleep 0.05; done'
nohup_start() { echo "nohup bash -c '$count' >/dev/null 2>&1 & exit 0"; }
nohup_ask() { cat n; }
tmux_start() {
	echo "$count" >count.sh
	echo "tmux -S $work/socket new-session -d 'bash $work/count.sh'; sleep infinity"
}
tmux_ask() { tmux -S "$work/socket" list-sessions >/dev/null && cat n; }
redis_start() { echo "redis-server --port $port --daemonize yes --save '' --dir $work >/dev/null; sleep infinity"; }
redis_ask() { redis-cli -p "$port" incr n; }
gunicorn_start() {
	printf 'n = 0\ndef app(environ, start):\n    global n\n    n += 1\n    start("200 OK", [])\n    return [b"%%d" %% n]\n' >web.py
	echo "gunicorn --daemon --bind 127.0.0.1:$port --worker-tmp-dir /dev/shm --chdir $work web:app; sleep infinity"
}
gunicorn_ask() { curl -sSf "http://127.0.0.1:$port/"; }
uvicorn_start() {
	cat >asgi.py <<-'P'
		n = 0
		async def app(scope, receive, send):
		    global n
		    if scope["type"] != "http":
		        return
		    n += 1
		    await send({"type": "http.response.start", "status": 200})
		    await send({"type": "http.response.body", "body": b"%d" % n})
	P
	echo "exec /usr/bin/python3 -m uvicorn --loop uvloop --port $port --app-dir $work --lifespan off asgi:app"
}
uvicorn_ask() { gunicorn_ask; }
nginx_start() {
	printf 'pid %s/nginx.pid;\nevents {}\nhttp { access_log off; server { listen 127.0.0.1:%s; location / { return 200 $connection; } } }\n' "$work" "$port" >nginx.conf
	echo "nginx -p $work -e $work/error.log -c $work/nginx.conf; sleep infinity"
}
nginx_ask() { gunicorn_ask; }
node_start() {
	echo 'let n = 0; require("http").createServer((q, r) => r.end(String(++n))).listen(+process.argv[2], "127.0.0.1")' >server.js
	echo "exec node $work/server.js $port"
}
node_ask() { gunicorn_ask; }
jvm_start() {
	cat >Count.java <<-'J'
		import com.sun.net.httpserver.HttpServer;
		import java.net.InetSocketAddress;
		class Count {
		    static int n;
		    public static void main(String[] a) throws Exception {
		        var s = HttpServer.create(new InetSocketAddress("127.0.0.1", Integer.parseInt(a[0])), 0);
		        s.createContext("/", e -> { var b = String.valueOf(++n).getBytes(); e.sendResponseHeaders(200, b.length); e.getResponseBody().write(b); e.close(); });
		        s.start();
		    }
		}
	J
	echo "exec java $work/Count.java $port"
}
jvm_ask() { gunicorn_ask; }
mpirun_start() { echo "exec mpirun --allow-run-as-root --oversubscribe -n 2 bash -c 'cd $work; [ \$OMPI_COMM_WORLD_RANK = 0 ] || exec sleep infinity; $count'"; }
mpirun_ask() { cat n; }
dbus_start() { echo "dbus-daemon --session --fork --address=unix:path=$work/bus; sleep infinity"; }
dbus_ask() { # the id of a bus is made when it starts
	dbus-send --bus="unix:path=$work/bus" --print-reply=literal --dest=org.freedesktop.DBus / org.freedesktop.DBus.GetId
}
jupyter_start() {
	cat >ask.py <<-'P'
		import sys
		from jupyter_client import BlockingKernelClient
		c = BlockingKernelClient(connection_file=sys.argv[1])
		c.load_connection_file()
		c.start_channels()
		c.wait_for_ready(timeout=20)
		def output(m):
		    if m["msg_type"] == "stream":
		        print(m["content"]["text"], end="")
		c.execute_interactive("n = globals().get('n', 0) + 1; print(n)", timeout=20, output_hook=output)
	P
	# The kernel is a child of the server, which starts it when it is asked to.
	echo "export HOME=$work JUPYTER_RUNTIME_DIR=$work/runtime
		jupyter server --allow-root --ip 127.0.0.1 --port $port --no-browser --ServerApp.token= --ServerApp.password= --ServerApp.disable_check_xsrf=True &
		until curl -sSf -X POST http://127.0.0.1:$port/api/kernels >$work/kernel.json 2>/dev/null; do sleep 0.5; done; wait"
}
jupyter_ask() {
	curl -sSf "http://127.0.0.1:$port/api/kernels" | grep -q '"id"' || return 1
	/usr/bin/python3 ask.py "$(echo runtime/kernel-*.json)" 2>/dev/null
}
postgresql_start() {
	local bin
	bin=$(echo /usr/lib/postgresql/*/bin)
	mkdir -m 0777 pg
	chown postgres pg
	setpriv --reuid postgres --regid postgres --clear-groups "$bin/initdb" -D "$work/pg/data" >initdb.log
	echo "exec setpriv --reuid postgres --regid postgres --clear-groups $bin/postgres -D $work/pg/data -p $port -k $work/pg"
}
refused_postgresql='SysV'

# answer prints the answer of the program, when it gives one.
answer() {
	local end=$((SECONDS + 60)) a
	until a=$(timeout 30 bash -c "cd $work && $(declare -f "${name}_ask" gunicorn_ask); work=$work port=$port ${name}_ask" 2>>"$work/ask.log") && [[ $a ]]; do
		((SECONDS < end)) || return 1
		sleep 0.3
	done
	echo "$a"
}
tick() { sed -nE 's/.*"tick":([0-9]+).*/\1/p' "$work/cuda/status" 2>/dev/null || true; }
ticks_from() { local t; t=$(tick) && [[ $t ]] && ((t > $1)); }

start() {
	"$repo/build/cudasim/cudasim-run" --root "$dir/sim" -- "$repo/build/test/cucriu" run --dir "$work/job" "${options[@]}" -- \
		bash -c "$workload --dir $work/cuda --mib 2 >/dev/null 2>&1 & $1" >>"$work/run.log" 2>&1 </dev/null &
	run=$!
}
row() { printf '| %s | %s |\n' "$name" "$1" | tee -a "$dir/table"; }

try() {
	name=$1 work=$dir/work/$1 port=$2
	local command before after status=0 refused=refused_$1 options=(--every 1h)
	mkdir -p "$work/cuda"
	cd "$work"
	command=$("${name}_start")
	[[ $name != nohup ]] || options+=(--wait-all)
	start "$command"
	if [[ -v $refused ]]; then
		await 150 "$name is refused" grep -qs "${!refused}" run.log
		row "refused at its start: $(grep -m1 "${!refused}" run.log | sed -E 's/^(cucriu:)? *//')"
		kill -TERM "$run" 2>/dev/null || true
		wait "$run" || true
		return
	fi
	await 60 "the workload of $name runs" ticks_from 3
	before=$(answer) || { row "FAILED: does not answer before"; return 1; }
	kill -TERM "$run"
	wait "$run" || status=$?
	((status == 75)) || { row "FAILED: the preemption ended with $status"; tail -n 12 run.log; return 1; }
	local t
	t=$(tick)
	start "$command"
	await 60 "the workload of $name resumes" ticks_from "$((t + 2))"
	after=$(answer) || { row "FAILED: does not answer after"; tail -n 12 run.log; return 1; }
	[[ $after == "$before" ]] || { [[ $after =~ ^[0-9]+$ ]] && ((after > before)); } || { row "FAILED: $before before, $after after"; return 1; }
	grep -q 'warning' run.log && note "$(grep 'warning' run.log | sort -u)"
	row "preempted and resumed: $before before, $after after"
	kill -TERM "$run"
	wait "$run" || true
}

inside() {
	make_host
	mount -t tmpfs -o mode=0755 tmpfs /run
	ip link set lo up 2>/dev/null || true
	export CUCRIU_CRIU=$criu
	say "CRIU $(criu_version "$criu")"
	local i failed=0
	for i in "${!names[@]}"; do
		[[ -z $only || " $only " == *" ${names[i]} "* ]] || continue
		(try "${names[i]}" $((18000 + i))) || failed=1
	done
	((failed == 0)) || fail "see above"
}

only=${CUCRIU_TRY_ONLY-}
args=()
for arg in "$@"; do
	case $arg in --inside | --keep | /*) args+=("$arg") ;; *) only+=" $arg" ;; esac
done
export CUCRIU_TRY_ONLY=$only
run_in_namespaces "$programs" "$packages" "${args[@]}"
