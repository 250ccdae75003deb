-- Everything that is known of one trace: curl 'http://127.0.0.1:8124/?param_trace_id=…' --data-binary @one_trace.sql
SELECT *, event_time
FROM traces FINAL
WHERE trace_id = {trace_id:String}
ORDER BY pane
FORMAT Vertical
