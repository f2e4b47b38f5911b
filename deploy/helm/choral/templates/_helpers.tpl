{{- define "choral.name" -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- end -}}

{{- define "choral.labels" -}}
app.kubernetes.io/name: choral
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "choral.selector" -}}
app.kubernetes.io/name: choral
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{- define "choral.image" -}}
{{- $default := ternary "cuda" "cpu" (eq .Values.profile "gpu") -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default $default }}
{{- end -}}

{{- define "choral.redisUrl" -}}
{{- if .Values.redis.enabled -}}
redis://{{ include "choral.name" . }}-redis:6379/0
{{- else -}}
{{ .Values.redis.url }}
{{- end -}}
{{- end -}}

{{- define "choral.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
fsGroupChangePolicy: OnRootMismatch
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- define "choral.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{- define "choral.resources" -}}
{{- $resources := deepCopy .part.resources -}}
{{- if eq .root.Values.profile "gpu" -}}
{{- $limits := merge (dict .root.Values.gpuResource .root.Values.gpus) ($resources.limits | default dict) -}}
{{- $_ := set $resources "limits" $limits -}}
{{- end -}}
{{- toYaml $resources -}}
{{- end -}}

{{- define "choral.engineFlags" -}}
- --model={{ .Values.model }}
{{- if eq .Values.profile "gpu" }}
- --device=cuda
{{- if gt (int .Values.gpus) 1 }}
- --devices={{ range $i := until (int .Values.gpus) }}{{ if $i }},{{ end }}{{ $i }}{{ end }}
{{- end }}
{{- else }}
- --device=cpu
{{- end }}
- --log-format=json
{{- end -}}

{{- define "choral.environment" -}}
{{- $url := include "choral.redisUrl" . }}
{{- if $url }}
- name: CHORAL_REDIS
  value: {{ $url | quote }}
{{- end }}
{{- end -}}

{{- define "choral.scheduling" -}}
{{- with .root.Values.runtimeClassName }}
runtimeClassName: {{ . }}
{{- end }}
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .part.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .part.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .part.affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "choral.volumes" -}}
- name: models
  persistentVolumeClaim:
    claimName: {{ .root.Values.modelCache.existingClaim | default (printf "%s-models" (include "choral.name" .root)) }}
- name: data
  emptyDir:
    sizeLimit: {{ .part.dataSize }}
- name: tmp
  emptyDir:
    sizeLimit: {{ .part.dataSize }}
{{- end -}}

{{- define "choral.mounts" -}}
- {name: models, mountPath: /models}
- {name: data, mountPath: /data}
- {name: tmp, mountPath: /tmp}
{{- end -}}
